package limit

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const oneLimit = "limits:\n  - name: a\n    window: 1m\n    max: 5\n"

func TestParse(t *testing.T) {
	t.Parallel()
	set, err := Parse([]byte(`# all that a limit can have
limits:
  - name: login
    window: 1m
    max: 5
    policy: log
    fail: closed
    key: "user:{key}"
  - {name: api.v1_x-Y, window: 366d, max: 1000000000}
  - {name: "07", window: "1s", max: "1", policy: stream, fail: open, key: '{ip} {header.X-Plan}'}
  - {name: shared, window: 1m, max: 1000, mode: enforce, share: {hits: 1000, for: 1m}}
  - {name: tried, window: 1m, max: 5, mode: shadow}
  - {name: exports, window: 30s, max: 10000, policy: concurrent}
`))
	require.NoError(t, err)
	if names := slices.Sorted(maps.Keys(set)); !slices.Equal(names, []string{"07", "api.v1_x-Y", "exports", "login", "shared", "tried"}) {
		t.Fatalf("the names are %v", names)
	}
	for name, want := range map[string]Limit{
		"login":      {Window: time.Minute, Max: 5, Policy: Log, Fail: FailClosed, Mode: Enforce},
		"api.v1_x-Y": {Window: MaxWindow, Max: MaxHits, Policy: Cells, Fail: FailLocal, Mode: Enforce},
		"07":         {Window: time.Second, Max: 1, Policy: Stream, Fail: FailOpen, Mode: Enforce},
		"shared":     {Window: time.Minute, Max: 1000, Policy: Cells, Fail: FailLocal, Mode: Enforce, Share: Share{1000, time.Minute}},
		"tried":      {Window: time.Minute, Max: 5, Policy: Cells, Fail: FailLocal, Mode: Shadow},
		"exports":    {Window: 30 * time.Second, Max: MaxPlaces, Policy: Concurrent, Fail: FailLocal, Mode: Enforce},
	} {
		l := set[name]
		if l.Name != name || l.Window != want.Window || l.Max != want.Max || l.Policy != want.Policy || l.Fail != want.Fail || l.Mode != want.Mode || l.Share != want.Share {
			t.Errorf("%s is %+v, want %+v", name, l, want)
		}
	}
	for name, want := range map[string]string{"login": "user:{key}", "api.v1_x-Y": "{key}", "07": "{ip} {header.X-Plan}"} {
		require.EqualValues(t, want, set[name].Key.String())
	}
}

func TestParseOtherForms(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a document's mark":    "---\n" + oneLimit + "...\n",
		"a version":            "%YAML 1.1\n---\n" + oneLimit,
		"lines end as in DOS":  strings.ReplaceAll(oneLimit, "\n", "\r\n"),
		"a byte-order mark":    "\ufeff" + oneLimit,
		"JSON":                 `{"limits": [{"name": "a", "window": "1m", "max": 5}]}`,
		"an anchor, no alias":  strings.Replace(oneLimit, "name: a", "name: &x a", 1),
		"a comment at the end": oneLimit + "# the end",
	} {
		set, err := Parse([]byte(text))
		if err != nil || len(set) != 1 || set["a"] == nil || set["a"].Max != 5 {
			t.Errorf("%s: %v, %v", name, set, err)
		}
	}
	if set, err := Parse([]byte("limits: []\n")); err != nil || len(set) != 0 {
		t.Errorf("an empty list means no limits: %v, %v", set, err)
	}
}

func TestParseMistakes(t *testing.T) {
	t.Parallel()
	// entry is a file whose limit has further fields, or other ones.
	entry := func(lines ...string) string { return "limits:\n  - " + strings.Join(lines, "\n    ") + "\n" }
	const name, length, most = "name: a", "window: 1m", "max: 5"
	for _, c := range []struct {
		name, text string
		line       int
		message    string // a part of it
	}{
		{"empty", "", 0, "it is empty"},
		{"only a comment", "# limits\n", 0, "it is empty"},
		{"no list", "limits: 5\n", 1, "limits: it is missing or no list"},
		{"a mapping for the list", "limits: {name: a}\n", 1, "limits: it is missing or no list"},
		{"limits without a value", "limits:\n", 1, "limits: it is empty"},
		{"limits are null", "limits: null\n", 1, "limits: it is empty"},
		{"a list alone", "- name: a\n", 1, "the file is no mapping"},
		{"a word alone", "\nlimits\n", 2, "the file is no mapping"},
		{"limits twice", oneLimit + "limits: []\n", 5, "limits: it is there twice"},
		{"another field", oneLimit + "limit: []\n", 5, `unknown field "limit": allowed is limits`},
		{"a field that is a list", "? [a]\n: 5\n", 1, "unknown field"},
		{"two documents", oneLimit + "---\nlimits: []\n", 5, "a second YAML document begins here: allowed is one"},
		{"a second document that is no YAML", oneLimit + "---\n\tx: 1\n", 6, "it is no YAML"},

		{"a tab", "limits:\n\t- name: a\n", 2, "it is no YAML: found character that cannot start any token"},
		{"wrong indent", "limits:\n  - name: a\n   window: 1m\n", 3, "(while parsing a block collection that begins on line 2)"},
		{"a colon too many", "limits: a: b\n", 1, "it is no YAML: mapping values are not allowed"},
		{"a list that does not end", "limits: [\n", 2, "it is no YAML"},
		{"a quote that does not end", "limits:\n  - name: \"a\n", 3, "that begins on line 2)"},
		{"a control character", "limits: \x00\n", 0, "it is no YAML: control characters are not allowed"},
		{"no UTF-8", "limits: \xff\n", 0, "it is no YAML: invalid leading UTF-8 octet"},

		{"an alias that means nothing", "limits: *x\n", 1, "an alias is not allowed"},
		{"an alias for a value", entry("name: &x a", length, most) + "  - name: *x\n    window: 1m\n    max: 5\n", 5, "name: an alias is not allowed"},
		{"an alias for a limit", "limits:\n  - &x\n    name: a\n    window: 1m\n    max: 5\n  - *x\n", 6, "an alias is not allowed"},
		{"a list in itself", "limits: &x [*x]\n", 1, "an alias is not allowed"},
		{"a merge key", "limits:\n  - &x\n    name: a\n    window: 1m\n    max: 5\n  - <<: *x\n    name: b\n", 6, `unknown field "<<"`},

		{"a word for a limit", "limits:\n  - a\n", 2, "a limit is no mapping: allowed is name, window, max, policy, fail, mode, share, key"},
		{"nothing for a limit", oneLimit + "  -\n", 5, "a limit is no mapping"},
		{"an unknown field", entry(name, length, most, "burst: 5"), 5, `unknown field "burst": allowed is name, window, max, policy, fail, mode, share, key`},
		{"a field in capitals", entry(name, length, "Max: 5"), 4, `unknown field "Max"`},
		{"a field twice", entry(name, length, most, most), 5, "max: it is there twice"},
		{"a field without a value", entry(name, length, most, "policy:"), 5, "policy: it is empty"},
		{"a field that is null", entry("name: null", length, most), 2, "name: it is empty"},
		{"a field that is a tilde", entry(name, length, "max: ~"), 4, "max: it is empty"},
		{"a field that is quoted and empty", entry(name, length, most, `key: ""`), 5, "key: it is empty"},
		{"a list for a value", entry(name, "window: [1m]", most), 3, "window: allowed is a single value"},
		{"a key without quotes", entry(name, length, most, "key: {key}"), 5, "key: allowed is a single value"},

		{"no name", entry(length, most), 2, "name: it is missing: a limit needs name, window and max"},
		{"no window", entry(name, most), 2, "window: it is missing"},
		{"no max", entry(name, length), 2, "max: it is missing"},
		{"a name with a space", entry("name: a b", length, most), 2, `name: "a b": allowed are 1 to 64 letters`},
		{"a name with a colon", entry("name: a:b", length, most), 2, `name: "a:b"`},
		{"a name of 65", entry("name: "+strings.Repeat("a", 65), length, most), 2, "allowed are 1 to 64 letters"},
		{"a name with an accent", entry("name: café", length, most), 2, `name: "café"`},
		{"a name with its line's end", entry("name: |\n      a", length, most), 2, `name: "a\n"`},
		{"the same name twice", oneLimit + "  - max: 5\n    window: 1m\n    name: a\n", 7, `name: "a" is the name of the limit on line 2, too`},
		{"a window without a unit", entry(name, "window: 60", most), 3, `window: "60" is not a duration`},
		{"a window of no time", entry(name, "window: 0s", most), 3, `window: "0s" is not a duration`},
		{"a window in two units", entry(name, "window: 1h30m", most), 3, `window: "1h30m" is not a duration`},
		{"a window below a second", entry(name, "window: 100ms", most), 3, `window: "100ms" is not a duration`},
		{"a window of 367 days", entry(name, "window: 367d", most), 3, "window: 367d: allowed is 1s to 366d"},
		{"max is a float", entry(name, length, "max: 1e3"), 4, `max: "1e3": allowed is a whole number`},
		{"max has a point", entry(name, length, "max: 5.0"), 4, `max: "5.0": allowed is a whole number`},
		{"max has underscores", entry(name, length, "max: 1_000"), 4, `max: "1_000"`},
		{"max is hexadecimal", entry(name, length, "max: 0x10"), 4, `max: "0x10"`},
		{"max is zero", entry(name, length, "max: 0"), 4, "max: 0: allowed is 1 to 1000000000 with the policy cells"},
		{"max is negative", entry(name, length, "max: -1"), 4, "max: -1: allowed is 1 to"},
		{"max is too large", entry(name, length, "max: 1000000001"), 4, "max: 1000000001: allowed is 1 to 1000000000"},
		{"max is too large for log", entry(name, length, "max: 100001", "policy: log"), 4, "max: 100001: allowed is 1 to 100000 with the policy log"},
		{"max is no int64", entry(name, length, "max: 99999999999999999999"), 4, "allowed is a whole number"},
		{"an unknown policy", entry(name, length, most, "policy: gcra"), 5, `policy: "gcra": allowed are cells, log, stream, concurrent`},
		{"an unknown fail mode", entry(name, length, most, "fail: Open"), 5, `fail: "Open": allowed are local, open, closed`},
		{"an unknown mode", entry(name, length, most, "mode: Shadow"), 5, `mode: "Shadow": allowed are enforce, shadow`},
		{"a mode that is off", entry(name, length, most, "mode: off"), 5, `mode: "off": allowed are`},
		{"a mode that is a list", entry(name, length, most, "mode: [shadow]"), 5, "mode: allowed is a single value"},
		{"too many places", entry(name, length, "max: 10001", "policy: concurrent"), 4, "max: 10001: allowed is 1 to 10000 with the policy concurrent"},
		{"a lease below a second", entry(name, "window: 0s", most, "policy: concurrent"), 3, `window: "0s" is not a duration`},
		{"a lease of 367 days", entry(name, "window: 367d", most, "policy: concurrent"), 3, "window: 367d: allowed is 1s to 366d"},
		{"no lease", entry(name, most, "policy: concurrent"), 2, "window: it is missing"},
		{"places for Envoy", entry(name, length, most, "policy: concurrent", "envoy: {domain: edge, descriptor: [{key: a}]}"), 6, "envoy: a limit of the policy concurrent cannot have it"},
		{"a share of places", entry(name, length, most, "policy: concurrent", "share: {hits: 2, for: 1s}"), 6, "share: not with the policy concurrent"},
		{"a share in shadow mode", entry(name, length, most, "share: {hits: 2, for: 1s}", "mode: shadow"), 5, "share: not with mode: shadow"},
		{"a share that is a number", entry(name, length, most, "share: 5"), 5, "share: allowed is a mapping"},
		{"a share that is a list", entry(name, length, most, "share: [2, 1s]"), 5, "share is no mapping: allowed is hits, for"},
		{"a share without hits", entry(name, length, most, "share: {for: 1s}"), 5, "share: hits is missing: a share needs hits and for"},
		{"a share without an end", entry(name, length, most, "share:", "  hits: 2"), 6, "share: for is missing: a share needs hits and for"},
		{"a share with another field", entry(name, length, most, "share:", "  hits: 2", "  per: 1s"), 7, `unknown field "per": allowed is hits, for`},
		{"a share of a float", entry(name, length, most, "share:", "  for: 1s", "  hits: 2.5"), 7, `share: hits: "2.5": allowed is a whole number`},
		{"a share without a unit", entry(name, length, most, "share:", "  hits: 2", "  for: 1"), 7, `share: for: "1" is not a duration`},
		{"a share of nothing", entry(name, length, most, "share: {hits: 0, for: 1s}"), 5, "share: 0 hits: allowed is 2 to 5"},
		{"a share of one hit", entry(name, length, most, "share: {hits: 1, for: 1s}"), 5, "share: 1 hits: allowed is 2 to 5"},
		{"a share of more than max", entry(name, length, most, "share: {hits: 6, for: 1s}"), 5, "share: 6 hits: allowed is 2 to 5"},
		{"a share of a max of one", entry(name, length, "max: 1", "share: {hits: 2, for: 1s}"), 5, "share: max is 1: a share has 2 hits or more"},
		{"a share of more than log takes at once", entry(name, length, "max: 2000", "policy: log", "share: {hits: 1001, for: 1s}"), 6, "share: 1001 hits: allowed is 2 to 1000"},
		{"a share of no time", entry(name, length, most, "share: {hits: 2, for: 0s}"), 5, `share: for: "0s" is not a duration`},
		{"a share for longer than a minute", entry(name, "window: 1h", most, "share: {hits: 2, for: 61s}"), 5, "share: for 61s: allowed is 1s to 1m"},
		{"a share for longer than the window", entry(name, "window: 10s", most, "share: {hits: 2, for: 11s}"), 5, "share: for 11s: allowed is 1s to 10s"},
		{"a key without a variable", entry(name, length, most, "key: 5"), 5, `key: "5": allowed is text with {key}`},
		{"a key with an unknown variable", entry(name, length, most, `key: "{user}"`), 5, `key: "{user}": allowed is text with {key}`},
		{"the second limit", oneLimit + "  - name: b\n    window: 1m\n    max: x\n", 7, `max: "x"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			var mistake *FileError
			require.ErrorAs(t, err, &mistake)
			if mistake.Line != c.line || !strings.Contains(mistake.Message, c.message) {
				t.Errorf("line %d: %s; want line %d: …%s…", mistake.Line, mistake.Message, c.line, c.message)
			}
			begin := strings.HasPrefix(err.Error(), "line ")
			if begin != (c.line > 0) || strings.Contains(mistake.Message, "yaml: ") || strings.HasPrefix(mistake.Message, "line ") {
				t.Errorf("the error is %q", err)
			}
		})
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
		var mistake *FileError
		if err != nil {
			if !errors.As(err, &mistake) || set != nil || mistake.Line < 0 || mistake.Line > lines(data) || mistake.Message == "" {
				t.Fatalf("%v, %#v", set, err)
			}
			return
		}
		for name, l := range set {
			before := *l
			if err := l.check(); err != nil || name != l.Name || !namePattern.MatchString(name) || before.Policy != l.Policy || before.Fail != l.Fail || before.Mode != l.Mode || l.Share.Hits > l.Max {
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
