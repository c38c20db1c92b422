package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"tallyroll/internal/hit"
	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
)

// matches reports whether a descriptor of the file is for one of a request.
func matches(d *limitfile.Descriptor, domain string, entries []*ratelimit.RateLimitDescriptor_Entry) bool {
	if d.Domain != domain || len(d.Entries) != len(entries) {
		return false
	}
	for i, e := range d.Entries {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(cmp.Or(e.Value, "*")), `\*`, ".*")
		if e.Key != entries[i].Key || !regexp.MustCompile("^"+pattern+"$").MatchString(entries[i].Value) {
			return false
		}
	}
	return true
}

// moreSpecific reports whether a comes before b: at the first entry at which they differ, it has the value,
// or is the longer one with asterisks.
func moreSpecific(a, b *limitfile.Descriptor) bool {
	rank := func(e limitfile.Entry) int {
		if strings.Contains(e.Value, "*") {
			return len(e.Value)
		}
		return 100 * len(e.Value)
	}
	for i := range a.Entries {
		one, other := a.Entries[i], b.Entries[i]
		if order := cmp.Or(cmp.Compare(rank(other), rank(one)), strings.Compare(one.Value, other.Value)); order != 0 {
			return order < 0
		}
	}
	return false
}

// The mapping finds what a search through all descriptors finds.
func TestMappingFindsTheMostSpecific(t *testing.T) {
	t.Parallel()
	word := rapid.SampledFrom([]string{"a", "b", "c"})
	value := rapid.SampledFrom([]string{"", "a", "b", "ab", "abb", "abab", "a*", "ab*", "b*", "*b", "a*b", "a*b*b", "*a*", "*"})
	domain := rapid.SampledFrom([]string{"x", "y"})
	rapid.Check(t, func(t *rapid.T) {
		set := make(limitfile.Set)
		for i := range rapid.IntRange(0, 12).Draw(t, "limits") {
			l := &limitfile.Limit{Limit: limit.Limit{Name: fmt.Sprintf("l%02d", i)}}
			for range rapid.IntRange(0, 3).Draw(t, "descriptors") {
				d := limitfile.Descriptor{Domain: domain.Draw(t, "domain")}
				for range rapid.IntRange(1, 4).Draw(t, "entries") {
					d.Entries = append(d.Entries, limitfile.Entry{Key: word.Draw(t, "key"), Value: value.Draw(t, "value")})
				}
				if !slices.ContainsFunc(l.Envoy, func(other limitfile.Descriptor) bool { return other.String() == d.String() }) {
					l.Envoy = append(l.Envoy, d)
				}
			}
			set[l.Name] = l
		}
		m := newMapping(set)
		for range 20 {
			in := domain.Draw(t, "domain")
			var entries []*ratelimit.RateLimitDescriptor_Entry
			for range rapid.IntRange(1, 5).Draw(t, "entries") {
				entries = append(entries, &ratelimit.RateLimitDescriptor_Entry{Key: word.Draw(t, "key"), Value: value.Draw(t, "value")})
			}
			var best *limitfile.Descriptor
			for _, l := range set {
				for i := range l.Envoy {
					if d := &l.Envoy[i]; matches(d, in, entries) && (best == nil || moreSpecific(d, best)) {
						best = d
					}
				}
			}
			var want, got []string
			for _, l := range set {
				for i := range l.Envoy {
					if best != nil && l.Envoy[i].String() == best.String() {
						want = append(want, l.Name)
					}
				}
			}
			for _, r := range m.find(in, entries) {
				got = append(got, r.limit.Name)
			}
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("%s %v has the limits %v, want %v (%v)", in, entries, got, want, best)
			}
		}
	})
}

// Distinct values have distinct keys, however long they are. Those of one address, host or path have one.
func TestDistinctValuesHaveDistinctKeys(t *testing.T) {
	t.Parallel()
	set, err := limitfile.Parse([]byte(`
limits:
- {name: joined, window: 1h, max: 5, envoy: {domain: edge, descriptor: [{key: a}, {key: b, value: x}, {key: c}]}}
- {name: parts, window: 1h, max: 5, key: "{host} {path} {ip}", envoy: {domain: edge, descriptor: [{key: h, as: host}, {key: p, as: path}, {key: i, as: ip}]}}
- {name: fixed, window: 1h, max: 5, envoy: {domain: edge, descriptor: [{key: f, value: v}, {key: g, value: "w w"}]}}
`))
	require.NoError(t, err)
	m := newMapping(set)
	keyOf := func(d *ratelimit.RateLimitDescriptor) string {
		rules := m.find("edge", d.Entries)
		require.EqualValues(t, 1, len(rules))
		var values []string
		for _, e := range d.Entries {
			values = append(values, e.Value)
		}
		take, err := rules[0].newTake(values, 1)
		require.NoError(t, err)
		return take.Key
	}
	for _, c := range []struct {
		d    *ratelimit.RateLimitDescriptor
		want string
	}{
		{descriptor("a=1", "b=x", "c=2"), "1 2"},
		{descriptor("a=1 2", "b=x", "c=%"), "1%202 %25"},
		{descriptor("h=Shop.Example.:443", "p=/a//b/../c?d=e", "i=2001:db8::1"), "shop.example /a/c 2001:db8::/64"},
		{descriptor("h=[2001:DB8:0::1]", "p=/", "i=::1"), "2001:db8::1 / ::/64"},
		{descriptor("h=a b", "p=x", "i=::ffff:192.0.2.1"), "a%20b /x 192.0.2.1"},
		{descriptor("f=v", "g=w w"), "v w%20w"},
	} {
		require.EqualValues(t, c.want, keyOf(c.d), c.d)
	}
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ %a]{0,4}`), rapid.StringMatching(`x{510,515}`),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
	rapid.Check(t, func(t *rapid.T) {
		a, b, c, d := text.Draw(t, "a"), text.Draw(t, "b"), text.Draw(t, "c"), text.Draw(t, "d")
		one, other := keyOf(descriptor("a="+a, "b=x", "c="+b)), keyOf(descriptor("a="+c, "b=x", "c="+d))
		if same := a == c && b == d; same != (one == other) {
			t.Fatalf("%q %q and %q %q have the keys %q and %q", a, b, c, d, one, other)
		}
		if err := hit.CheckName([]byte(one)); err != nil {
			t.Fatalf("%q and %q have a key that no counter can have: %v", a, b, err)
		}
	})
}

// A message stays as it is. Bytes that are a message except for their texts become one, and nothing makes the
// codec panic.
func FuzzCodec(f *testing.F) {
	whole, err := proto.Marshal(&rls.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{hits(descriptor("user=\u00e9%FF", "a=b"), 3)}, HitsAddend: 2})
	require.NoError(f, err)
	f.Add(whole)
	f.Add([]byte("\n\x01\xff"))
	f.Add([]byte("\x80\x9c\xf6\xed00")) // the number of its field is too large
	f.Add([]byte("\x12\x06\n\x04\n\x02\xc3\x28"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var out, same rls.RateLimitRequest
		mended, ok := repair(nil, text, out.ProtoReflect().Descriptor())
		if proto.Unmarshal(text, &same) == nil {
			if !ok || proto.Unmarshal(mended, &out) != nil {
				t.Fatalf("%x is a message, and became %x", text, mended)
			}
			if restore(&out); !proto.Equal(&out, &same) {
				t.Fatalf("%x became %v", text, &out)
			}
			return
		}
		if ok && proto.Unmarshal(mended, &out) != nil {
			t.Fatalf("%x became %x, which is no message", text, mended)
		}
	})
}

// A file is wide if one request can match more limits than one script decides about: not if each has another
// value.
func TestDomainIsWideIfARequestCanMatchTooManyLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		key  func(i int) limitfile.Entry
		want int
	}{
		{"a key each", func(i int) limitfile.Entry { return limitfile.Entry{Key: fmt.Sprint("k", i)} }, 17},
		{"headers that match", func(i int) limitfile.Entry { return limitfile.Entry{Key: "header_match", Value: fmt.Sprint("v", i)} }, 17},
		{"values of one header", func(i int) limitfile.Entry { return limitfile.Entry{Key: "tenant", Value: fmt.Sprint("v", i)} }, 0},
		{"one descriptor", func(int) limitfile.Entry { return limitfile.Entry{Key: "k"} }, 17},
	} {
		set := make(limitfile.Set)
		for i := range limit.MaxTogether + 1 {
			l := &limitfile.Limit{Limit: limit.Limit{Name: fmt.Sprint("l", i)}, Envoy: []limitfile.Descriptor{{Domain: "edge", Entries: []limitfile.Entry{{Key: "a"}, c.key(i)}}}}
			set[l.Name] = l
		}
		got := 0
		for _, wide := range newMapping(set).wide {
			got += len(wide.limits)
		}
		delete(set, "l0")
		if got != c.want || newMapping(set).wide != nil {
			t.Errorf("%s: %d limits are named, want %d, and none of 16", c.name, got, c.want)
		}
	}
}
