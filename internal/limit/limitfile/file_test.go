package limitfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
				lines[len(lines)-1] += fmt.Sprintf(", count %s", l.Count)
			}
		}
		return strings.Join(lines, "\n")
	})
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
