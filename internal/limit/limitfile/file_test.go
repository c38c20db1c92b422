package limitfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/limit"
	"tallyroll/internal/platform/yamlfile"
	"tallyroll/tests/cases"
	"tallyroll/tests/schema"
)

const oneLimit = "limits:\n  - name: a\n    window: 1m\n    max: 5\n"

func TestFileIsReadOrItsMistakeIsNamed(t *testing.T) {
	t.Parallel()
	cases.Check(t, "file", func(t *testing.T, section, given string) string {
		if key, ok := strings.CutPrefix(section, "envoy of a limit with the key "); ok {
			given, section = fmt.Sprintf("name: a\nwindow: 1m\nmax: 5\nenvoy: %s\nkey: '%s'", given, key), "one limit"
		}
		if section == "one limit" {
			given = "limits:\n  - " + strings.ReplaceAll(given, "\n", "\n    ") + "\n"
		}
		set, err := Parse([]byte(given))
		if err != nil {
			var mistake *yamlfile.Error
			require.ErrorAs(t, err, &mistake)
			require.Equal(t, mistake.Line > 0, strings.HasPrefix(err.Error(), "line "), "the line is told once")
			require.NotContains(t, err.Error(), "yaml: ")
			return err.Error()
		}
		require.NoError(t, schema.Check(Schema(), []byte(given)))
		lines := []string{fmt.Sprint(len(set), " limits")}
		for _, name := range slices.Sorted(maps.Keys(set)) {
			l := set[name]
			require.Equal(t, name, l.Name)
			if l.Unlimited {
				name += " (unlimited)"
			}
			lines = append(lines, fmt.Sprintf("%s: %d in %s, %s, %s, %s, key %q, share %v, envoy %v", name, l.Max,
				l.Window, l.Policy, l.Fail, l.Mode, l.Key.String(), l.Share, l.Envoy))
			if l.Count != (limit.Count{}) {
				lines[len(lines)-1] += fmt.Sprintf(", count %v", l.Count)
			}
		}
		return strings.Join(lines, "\n")
	})
}

// Counters of distinct fields, or of distinct prefixes, never meet: if a file is read, no keys make them
// meet. If it is refused for that, some keys do.
func TestCountersNeverMeet(t *testing.T) {
	t.Parallel()
	met, apart := 0, 0
	names := rapid.SampledFrom([]string{"usage.{key}", "usage.{limit}.{key}", "usage.{limit}.refused.{key}", "{limit}.{key}", "{limit}.usage.{key}", "refused.{key}", "usage.a.{key}", "us.{key}", "usage.a.refused.b.{key}", "usage.{limit}", "usage.a", "usage", "usage.a.refused.b"})
	keys := rapid.StringMatching(`(a|b|refused|usage|a:b|x)(\.(a|b|refused|usage|x)){0,3}`)
	rapid.Check(t, func(t *rapid.T) {
		type use struct{ field, prefix, limit, name string }
		text, uses := "limits:\n", []use(nil)
		for i, limitName := range []string{"a", rapid.SampledFrom([]string{"b", "a.b", "usage", "refused"}).Draw(t, "limit")} {
			text += fmt.Sprintf("  - {name: %s, window: 1m, max: 5, count: {", limitName)
			for _, field := range rapid.SampledFrom([][]string{{"allowed"}, {"refused"}, {"allowed", "refused"}}).Draw(t, fmt.Sprint("fields", i)) {
				text += field + ": ["
				for _, name := range rapid.SliceOfN(names, 1, 2).Draw(t, field) {
					text += fmt.Sprintf("%q, ", name)
					uses = append(uses, use{field, limit.CounterName(name).Prefix(limitName), limitName, name})
				}
				text += "], "
			}
			text += "}}\n"
		}
		_, err := Parse([]byte(text))
		witness := ""
		for i, u := range uses {
			for _, other := range uses[:i] {
				if u.field == other.field && u.prefix == other.prefix {
					if u.limit == other.limit {
						witness = "counted twice"
					}
					continue // they add up
				}
				for _, pair := range [][2]use{{u, other}, {other, u}} {
					key := keys.Draw(t, "key")
					if !limit.CounterName(pair[0].name).HasKey() {
						key = ""
					}
					tail, begins := strings.CutPrefix(pair[0].prefix, pair[1].prefix)
					of := limit.CounterName(pair[0].name).Of(pair[0].limit, key)
					if begins && of == limit.CounterName(pair[1].name).Of(pair[1].limit, tail+key) {
						witness = of
					}
					if err == nil && of == limit.CounterName(pair[1].name).Of(pair[1].limit, keys.Draw(t, "other key")) {
						t.Fatalf("%s\n%s is a counter of %v and of %v", text, of, u, other)
					}
				}
			}
		}
		if (err != nil) != (witness != "") {
			t.Fatalf("%s\n%v, but the counters that meet are %q", text, err, witness)
		}
		if err == nil {
			apart++
		} else {
			met++
		}
	})
	require.Positive(t, met)
	require.Positive(t, apart)
}

func TestDescriptorFillsTheKey(t *testing.T) {
	t.Parallel()
	set, err := Parse([]byte(`
limits:
  - name: login
    window: 1m
    max: 5
    key: "{ip} {header.X-Plan}"
    envoy: {domain: edge, descriptor: [{key: path, value: /login}, {key: remote_address, as: ip}, {key: plan, as: header.x-plan}]}
  - {name: many, window: 1m, max: 5, envoy: {domain: b, descriptor: [{key: user}, {key: path, value: "1"}]}}
`))
	require.NoError(t, err)
	for _, c := range []struct {
		name, variable string
		values         []string
		want           string
	}{
		{"login", "ip", []string{"/login", "192.0.2.1", "gold"}, "192.0.2.1"},
		{"login", "header.X-Plan", []string{"/login", "192.0.2.1", "gold"}, "gold"},
		{"many", "key", []string{"a b%", "1"}, "a b%"},
	} {
		got, err := set[c.name].Envoy[0].Value(c.variable, c.values)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
}

// Whatever a file says, Parse does not panic; its error is a FileError with a line of the file; and what it
// accepts can be decided about.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", oneLimit, oneLimit + "---\n", "limits: []", "limits: &x [*x]", "\xff\xfel\x00", "limits:\n\t- a", "? [a]\n: *b\n",
		"limits:\n  - {name: a, window: 1s, max: 1, policy: log, fail: open, key: '{ip}{header.X}'}\n",
		"limits:\n  - {name: a, window: 1m, max: 5, policy: concurrent}\n  - {name: b, window: 1m, max: 5, mode: shadow}\n  - {name: c, window: 1m, max: 5, share: {hits: 2, for: 1s}}\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := Parse(data)
		var mistake *yamlfile.Error
		if err != nil {
			if !errors.As(err, &mistake) || set != nil || mistake.Line < 0 || mistake.Line > lines(data) || mistake.Message == "" {
				t.Fatalf("%v, %#v", set, err)
			}
			return
		}
		for name, l := range set {
			before := *l
			if err := l.Check(); err != nil || name != l.Name || !namePattern.MatchString(name) || before.Policy != l.Policy || before.Fail != l.Fail || before.Mode != l.Mode || l.Share.Hits > l.Max && l.Max > 0 {
				t.Fatalf("%s: %+v, %v", name, l, err)
			}
			again, err := ParseTemplate(l.Key.String())
			if err != nil || again.String() != l.Key.String() {
				t.Fatalf("%q: %q, %v", l.Key, again, err)
			}
		}
	})
}

// lines is how many lines a text has, as YAML counts them, and one for its end.
func lines(text []byte) int {
	n := 2
	for _, r := range string(text) {
		if strings.ContainsRune("\n\r\u0085\u2028\u2029", r) {
			n++
		}
	}
	return n
}
