package main

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/plain"
)

// mapping finds the limits for a descriptor.
//
// A descriptor of the file matches a request's descriptor that has the same domain, the same keys in the same
// order, and the file's values where it has some. If several match, the most specific one decides, from
// the left: an entry with the value, then the longest one with asterisks (value: "foo*"), then one without.
// All limits with this descriptor count.
type mapping struct {
	domains map[string]*node
	limits  int  // limits that have a descriptor
	closed  bool // all of them have the fail mode closed
	wide    []wideDomain
}

// wideDomain is a domain in which one request can match more limits than one script decides about.
type wideDomain struct {
	name   string
	limits []string
}

// node is a step in the tree of descriptors, one entry deep.
type node struct {
	exact    map[pair]*node
	patterns map[pair]*node // those of which several values match
	rules    []rule         // descriptors that end here
}

type pair struct{ key, value string }

type rule struct {
	limit      *limit.Limit     // named's, or with the numbers of a request
	named      *limitfile.Limit // of the file
	descriptor *limitfile.Descriptor
}

func newMapping(set limitfile.Set) *mapping {
	out := &mapping{domains: make(map[string]*node), closed: true}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		l := set[name]
		if len(l.Envoy) == 0 {
			continue
		}
		out.limits++
		out.closed = out.closed && l.Fail == limit.FailClosed
		for i := range l.Envoy {
			d := &l.Envoy[i]
			at := child(&out.domains, d.Domain)
			for _, e := range d.Entries {
				if e.IsAny() {
					at = child(&at.patterns, pair{e.Key, e.Value})
				} else {
					at = child(&at.exact, pair{e.Key, e.Value})
				}
			}
			at.rules = append(at.rules, rule{&l.Limit, l, d})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(out.domains)) {
		shapes := make(map[string][]rule)
		out.domains[name].widest("", shapes)
		all := slices.Concat(slices.Collect(maps.Values(shapes))...)
		if len(all) <= limit.MaxTogether {
			continue
		}
		wide := wideDomain{name: name}
		for _, r := range all {
			wide.limits = append(wide.limits, r.limit.Name)
		}
		slices.Sort(wide.limits)
		wide.limits = slices.Compact(wide.limits)
		out.wide = append(out.wide, wide)
	}
	return out
}

// matchKeys are the keys of Envoy's actions that a route can have several times: their values are in its
// settings, and the client's headers or parameters decide which of them it sends.
var matchKeys = []string{"header_match", "query_match"}

// widest finds for each list of keys the descriptor with the most rules. A request has one descriptor of each
// list: no client sends two values of one header, or two addresses.
func (n *node) widest(keys string, shapes map[string][]rule) {
	if len(n.rules) > len(shapes[keys]) {
		shapes[keys] = n.rules
	}
	for p, next := range n.patterns {
		next.widest(fmt.Sprintf("%s %q", keys, p.key), shapes)
	}
	for p, next := range n.exact {
		if slices.Contains(matchKeys, p.key) {
			next.widest(fmt.Sprintf("%s %q=%q", keys, p.key, p.value), shapes)
		} else {
			next.widest(fmt.Sprintf("%s %q", keys, p.key), shapes)
		}
	}
}

func child[K comparable](nodes *map[K]*node, key K) *node {
	if *nodes == nil {
		*nodes = make(map[K]*node)
	}
	if (*nodes)[key] == nil {
		(*nodes)[key] = &node{}
	}
	return (*nodes)[key]
}

func (m *mapping) find(domain string, entries []*ratelimit.RateLimitDescriptor_Entry) []rule {
	if at := m.domains[domain]; at != nil {
		return at.find(entries)
	}
	return nil
}

// find descends as deep as the file's descriptors, however many entries there are.
func (n *node) find(entries []*ratelimit.RateLimitDescriptor_Entry) []rule {
	if len(entries) == 0 {
		return n.rules
	}
	e := entries[0]
	if next := n.exact[pair{e.GetKey(), e.GetValue()}]; next != nil {
		if found := next.find(entries[1:]); found != nil {
			return found
		}
	}
	best, out := "", []rule(nil)
	for p, next := range n.patterns {
		if p.key == e.GetKey() && limitfile.Matches(p.value, e.GetValue()) &&
			(out == nil || limitfile.ComparePatterns(p.value, best) < 0) {
			if found := next.find(entries[1:]); found != nil {
				best, out = p.value, found
			}
		}
	}
	return out
}

func (r rule) newTake(values []string, n int64) (limit.Take, error) {
	value := func(variable string) (string, error) {
		v, err := r.descriptor.Value(variable, values)
		return plainValue(variable, v), err
	}
	caller, under, err := r.named.Keys(value)
	id := r.descriptor.ID(values)
	if id != "" && n < 0 {
		id = "give back " + id // it has the id of the take
	}
	return limit.Take{Limit: r.limit, Caller: caller, Key: under, N: n, ID: boundID(id)}, err
}

// plainValue normalizes a value as query does, so that both count under the same key. Text that is no address
// stays unchanged, such as the network of Envoy's masked_remote_address.
func plainValue(variable, value string) string {
	switch variable {
	case limitfile.VarIP:
		if address, err := netip.ParseAddr(value); err == nil {
			return plain.Client(address)
		}
	case limitfile.VarHost:
		return plain.Host(value)
	case limitfile.VarPath:
		return plain.Target(value)
	case limitfile.VarMethod:
		return plain.Method(value)
	}
	return value
}

// boundID replaces what is no id by its SHA-256. A request without an id has none.
func boundID(id string) string {
	if id == "" || limit.IsID(id) {
		return id
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(id)))
}
