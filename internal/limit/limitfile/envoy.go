package limitfile

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"tallyroll/internal/limit"
	"tallyroll/internal/platform/yamlfile"
)

// Descriptor selects descriptors of Envoy's global rate limit protocol for a limit, and makes its key from
// them. Entries are in the order in which Envoy sends them.
type Descriptor struct {
	Domain  string
	Entries []Entry
	// Partly is true if hits are counted up to the limit, because they have already happened, such as the
	// bytes of a response. The take is still over the limit.
	Partly bool
	// Reserve is how many hits a request that asks with 0 hits takes under its id, until it sends their number.
	// 0 takes none.
	Reserve int64
}

type Entry struct {
	Key   string
	Value string // empty: any value; each asterisk stands for any text
	// the variable of the limit's key template that the value is for, AsID or AsNone; empty: it may be a part of
	// {key}
	As string
}

// IsAny reports whether more than one value matches.
func (e *Entry) IsAny() bool { return e.Value == "" || strings.Contains(e.Value, "*") }

// Matches reports whether the value of a request matches that of an entry.
func Matches(pattern, value string) bool {
	part, pattern, more := strings.Cut(cmp.Or(pattern, "*"), "*")
	value, ok := strings.CutPrefix(value, part)
	for ok && more {
		if part, pattern, more = strings.Cut(pattern, "*"); !more {
			return strings.HasSuffix(value, part)
		}
		_, value, ok = strings.Cut(value, part)
	}
	return ok && value == ""
}

// ComparePatterns sorts values with asterisks: of those that match, the first one decides.
func ComparePatterns(a, b string) int {
	return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
}

const (
	AsID   = "id"   // of the entry whose value is the id of the take, and no part of the key
	AsNone = "none" // of an entry whose value is no part of the key: all values share hits
)

const (
	// MaxEntries bounds the entries of a descriptor in the file of limits.
	MaxEntries = 16
	// MaxDescriptors bounds the descriptors of one limit.
	MaxDescriptors = 1000
)

// between separates the values of several entries in {key}.
const between = " "

// joined encodes such values, as a template with a space between its variables does.
var joined = Template{between: between + "%"}

// makesKey reports whether an entry's value is a part of {key}: values that are neither in the file nor for a
// variable are, or without any, all that are for no variable.
func (d *Descriptor) makesKey(e *Entry) bool {
	anyValue := slices.ContainsFunc(d.Entries, func(e Entry) bool { return e.IsAny() && e.As == "" })
	return e.As == "" && (e.IsAny() || !anyValue)
}

// Value returns a template variable's value for a descriptor with these values, in the order of the entries.
// Distinct values never make the same {key}.
func (d *Descriptor) Value(variable string, values []string) (string, error) {
	if variable != VarKey {
		for i := range d.Entries {
			if e := &d.Entries[i]; e.As != "" && SameVariable(e.As, variable) {
				return values[i], nil
			}
		}
		return "", fmt.Errorf("no entry is for it") // check has seen to it
	}
	var parts []string
	for i := range d.Entries {
		if d.makesKey(&d.Entries[i]) {
			parts = append(parts, values[i])
		}
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	for i := range parts {
		parts[i] = joined.encode(parts[i])
	}
	return strings.Join(parts, between), nil
}

// ID returns the id of a take for a descriptor with these values. It is empty if no entry is for it.
func (d *Descriptor) ID(values []string) string {
	if i := slices.IndexFunc(d.Entries, func(e Entry) bool { return e.As == AsID }); i >= 0 {
		return values[i]
	}
	return ""
}

// String returns the descriptor for errors: edge: path=/login, remote_address.
func (d *Descriptor) String() string {
	var out []string
	for _, e := range d.Entries {
		text := e.Key
		if e.Value != "" {
			text += "=" + e.Value
		}
		out = append(out, text)
	}
	return d.Domain + ": " + strings.Join(out, ", ")
}

// check refuses a descriptor that cannot fill the limit's key template, or of which a value would be lost.
func (d *Descriptor) check(l *Limit) error {
	variables := l.Key.Variables()
	for i, e := range d.Entries {
		switch {
		case e.As == VarKey:
			return fmt.Errorf("the entry %q is for {key}: leave as out, which means the same", e.Key)
		case e.As != "" && e.As != AsID && e.As != AsNone && !slices.ContainsFunc(variables, func(v string) bool {
			return SameVariable(v, e.As)
		}):
			return fmt.Errorf("the entry %q is for {%s}, which the limit's key %s does not have", e.Key, e.As, l.Key)
		case e.As != "" && e.As != AsNone && slices.ContainsFunc(d.Entries[:i], func(other Entry) bool {
			return other.As != "" && SameVariable(other.As, e.As)
		}):
			return fmt.Errorf("the entry %q is for {%s}, and so is one before it: one is allowed", e.Key, e.As)
		case e.IsAny() && e.As == "" && !l.Key.Uses(VarKey):
			return fmt.Errorf("the entry %q can have several values, and the limit's key %s has no variable for it: "+
				"name one with as, such as as: %s", e.Key, l.Key, variables[0])
		}
	}
	for _, v := range variables {
		filled := slices.ContainsFunc(d.Entries, func(e Entry) bool {
			return v == VarKey && (d.makesKey(&e) || e.As == AsNone) || e.As != "" && SameVariable(e.As, v)
		})
		if !filled {
			return fmt.Errorf("no entry is for {%s} of the limit's key %s: give one of them as: %s", v, l.Key, v)
		}
	}
	return d.checkReserve(l)
}

func (d *Descriptor) checkReserve(l *Limit) error {
	switch {
	case d.Reserve == 0:
		return nil
	case !l.Policy.Traits().Settles || l.Policy.Traits().MaxTake > 0:
		return fmt.Errorf("reserve: not with the policy %s: log counts at most %d hits at once, and takes of stream "+
			"cannot be settled", l.Policy, limit.MaxLogTake)
	case d.Reserve < 0 || d.Reserve > l.Max && l.Max > 0: // max can be 0 for a while
		return fmt.Errorf("reserve: %d hits: must be 1 to %d", d.Reserve, cmp.Or(l.Max, limit.MaxHits))
	case !slices.ContainsFunc(d.Entries, func(e Entry) bool { return e.As == AsID }):
		return fmt.Errorf("reserve: no entry is for the id of the request: give one of them as: id, such as that of " +
			"the header x-request-id")
	}
	return nil
}

func parseEnvoy(node *yaml.Node, l *Limit) ([]Descriptor, error) {
	nodes := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode {
		nodes = node.Content
	}
	if len(nodes) == 0 || len(nodes) > MaxDescriptors {
		return nil, yamlfile.Errorf(node.Line, "envoy: %d descriptors: must be 1 to %d", len(nodes), MaxDescriptors)
	}
	out := make([]Descriptor, 0, len(nodes))
	for _, node := range nodes {
		d, err := parseDescriptor(node)
		if err != nil {
			return nil, err
		}
		if err := d.check(l); err != nil {
			return nil, yamlfile.Errorf(node.Line, "envoy: %v", err)
		}
		if i := slices.IndexFunc(out, func(other Descriptor) bool { return other.same(&d) }); i >= 0 {
			return nil, yamlfile.Errorf(node.Line, "envoy: the descriptor %.200q is listed twice", d.String())
		}
		out = append(out, d)
	}
	return out, nil
}

func (d *Descriptor) same(other *Descriptor) bool {
	return d.Domain == other.Domain && slices.EqualFunc(d.Entries, other.Entries, func(a, b Entry) bool {
		return a.Key == b.Key && a.Value == b.Value
	})
}

var (
	envoyForm = yamlfile.Form{
		{Name: "domain", Required: true, Schema: yamlfile.Text, Doc: "the domain of Envoy's rate_limit filter"},
		{Name: "descriptor{}", Required: true, Schema: yamlfile.List(entryForm.Schema(), MaxEntries),
			Doc: "entries in the order in which Envoy sends them"},
		{Name: "partly", Schema: yamlfile.Bool, Doc: "count hits up to the limit, because they have already happened"},
		{Name: "reserve{}", Schema: reserveForm.Schema(),
			Doc: "what a request takes under its id until it sends its number of hits"},
	}
	reserveForm = yamlfile.Form{{Name: "hits", Required: true, Schema: hits}}
	entryForm   = yamlfile.Form{
		{Name: "key", Required: true, Schema: yamlfile.Text},
		{Name: "value", Schema: yamlfile.Text, Doc: "default any value; each * stands for any text"},
		{Name: "as", Schema: yamlfile.Text, Doc: "variable of the limit's key that the value is for: ip, " +
			"method, host, " +
			"path or header.NAME; id: the id of the take; none: all values share hits"},
	}
)

func parseDescriptor(node *yaml.Node) (Descriptor, error) {
	fields, err := envoyForm.Read(node, "envoy")
	if err != nil {
		return Descriptor{}, err
	}
	list := fields["descriptor"]
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 || len(list.Content) > MaxEntries {
		return Descriptor{}, yamlfile.Errorf(list.Line, "descriptor: must be a list of 1 to %d entries, such as "+
			"[{key: path, value: /login}, {key: remote_address}]", MaxEntries)
	}
	d := Descriptor{Domain: fields["domain"].Value}
	if partly := fields["partly"]; partly != nil {
		var ok bool
		if d.Partly, ok = yamlfile.ParseBool(partly); !ok {
			return Descriptor{}, yamlfile.Errorf(partly.Line, "partly: %q: must be true or false", partly.Value)
		}
	}
	if reserve := fields["reserve"]; reserve != nil {
		hits, err := reserveForm.Read(reserve, "reserve")
		if err != nil {
			return Descriptor{}, err
		}
		if d.Reserve, err = strconv.ParseInt(yamlfile.Value(hits["hits"]), 10, 64); err != nil || d.Reserve == 0 {
			return Descriptor{}, yamlfile.Errorf(reserve.Line, "reserve: must be {hits: N}, a whole number of hits")
		}
	}
	for _, item := range list.Content {
		entry, err := entryForm.Read(item, "an entry of descriptor")
		if err != nil {
			return Descriptor{}, err
		}
		e := Entry{Key: entry["key"].Value, Value: yamlfile.Value(entry["value"]), As: yamlfile.Value(entry["as"])}
		if e.As != "" && e.As != AsID && e.As != AsNone && !isVariable(e.As) {
			return Descriptor{}, yamlfile.Errorf(entry["as"].Line, "as: %q: must be ip, method, host, path, "+
				"header.NAME, id or none", e.As)
		}
		d.Entries = append(d.Entries, e)
	}
	return d, nil
}
