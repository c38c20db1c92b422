package limit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseEnvoy(t *testing.T) {
	t.Parallel()
	set, err := Parse([]byte(`
limits:
  - name: login
    window: 1m
    max: 5
    key: "{ip} {header.X-Plan}"
    envoy:
      domain: edge
      descriptor: [{key: path, value: /login}, {key: remote_address, as: ip}, {key: plan, as: header.x-plan}]
  - name: many
    window: 1m
    max: 5
    envoy:
      - {domain: a, descriptor: [{key: user}]}
      - {domain: b, partly: true, descriptor: [{key: user}, {key: path, value: "1"}]}
  - {name: none, window: 1m, max: 5}
`))
	require.NoError(t, err)
	for name, want := range map[string]string{
		"login": "[{edge [{path /login } {remote_address  ip} {plan  header.x-plan}] false}]",
		"many":  "[{a [{user  }] false} {b [{user  } {path 1 }] true}]",
		"none":  "[]",
	} {
		require.EqualValues(t, want, fmt.Sprint(set[name].Envoy), name)
	}
	value := func(name string, i int, variable string, values ...string) string {
		t.Helper()
		out, err := set[name].Envoy[i].Value(variable, values)
		require.NoError(t, err)
		return out
	}
	for got, want := range map[string]string{
		value("login", 0, "ip", "/login", "192.0.2.1", "gold"):            "192.0.2.1",
		value("login", 0, "header.X-Plan", "/login", "192.0.2.1", "gold"): "gold",
		value("many", 0, "key", "a b%"):                                   "a b%",
		value("many", 1, "key", "a b", "1"):                               "a b",
	} {
		require.EqualValues(t, want, got)
	}
}

// Each mistake has its line, and says what is allowed.
func TestParseEnvoyMistakes(t *testing.T) {
	t.Parallel()
	long := "[" + strings.Repeat("{key: a}, ", MaxEntries) + "{key: a}]"
	for _, c := range []struct{ key, envoy, want string }{
		{"", "edge", "line 5: envoy: allowed is a mapping or a list"},
		{"", "[]", "line 5: envoy: 0 descriptors: allowed are 1 to 1000"},
		{"", "[edge]", "line 5: envoy is no mapping: allowed is domain, descriptor, partly"},
		{"", "{domain: edge}", "line 5: envoy: descriptor is missing"},
		{"", "{descriptor: [{key: a}]}", "line 5: envoy: domain is missing"},
		{"", "{domain: edge, descriptor: a}", "line 5: descriptor: allowed is a mapping or a list"},
		{"", "{domain: edge, descriptor: []}", "line 5: descriptor: allowed is a list of 1 to 16 entries"},
		{"", "{domain: edge, descriptor: {key: a}}", "line 5: descriptor: allowed is a list of 1 to 16 entries"},
		{"", "{domain: edge, descriptor: " + long + "}", "line 5: descriptor: allowed is a list of 1 to 16 entries"},
		{"", "{domain: edge, descriptor: [{value: a}]}", "line 5: key: it is missing"},
		{"", "{domain: edge, descriptor: [{key: a, value: ''}]}", "line 5: value: it is empty"},
		{"", "{domain: edge, descriptor: [{key: a, prefix: b}]}", `line 5: unknown field "prefix": allowed is key, value, as`},
		{"", "{domain: [a], descriptor: [{key: a}]}", "line 5: domain: allowed is a single value"},
		{"", "{domain: &x edge, descriptor: [{key: *x}]}", "line 5: key: an alias is not allowed"},
		{"", "{domain: edge, partly: 2, descriptor: [{key: a}]}", `line 5: partly: "2": allowed are true and false`},
		{"", "{domain: edge, descriptor: [{key: a, as: user}]}", `line 5: as: "user": allowed are ip, method, host, path and header.NAME`},
		{"", "{domain: edge, descriptor: [{key: a, as: key}]}", `line 5: envoy: the entry "a" is for {key}: leave as out`},
		{"", "{domain: edge, descriptor: [{key: a, as: ip}]}", `line 5: envoy: the entry "a" is for {ip}, which the limit's key {key} does not have`},
		{"{ip}", "{domain: edge, descriptor: [{key: a}]}", `line 5: envoy: the entry "a" can have any value, and the limit's key {ip} has no place for it: say for which variable it is, such as as: ip`},
		{"{ip}", "{domain: edge, descriptor: [{key: a, value: b}]}", "line 5: envoy: no entry is for {ip} of the limit's key {ip}"},
		{"{key} {ip}", "{domain: edge, descriptor: [{key: a, as: ip}]}", "line 5: envoy: no entry is for {key} of the limit's key {key} {ip}"},
		{"{ip}", "{domain: edge, descriptor: [{key: a, as: ip}, {key: b, as: ip}]}", `line 5: envoy: the entry "b" is for {ip}, and so is one before it`},
		{"", "[{domain: edge, descriptor: [{key: a}]}, {domain: edge, descriptor: [{key: a}]}]", `line 5: envoy: the descriptor "edge: a" is there twice`},
	} {
		key := c.key
		if key == "" {
			key = "{key}"
		}
		_, err := Parse([]byte("limits:\n- name: a\n  window: 1m\n  max: 5\n  envoy: " + c.envoy + "\n  key: '" + key + "'\n"))
		var bad *FileError
		if !errors.As(err, &bad) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.envoy, err, c.want)
		}
	}
}

func TestWithNumbers(t *testing.T) {
	t.Parallel()
	l := &Limit{Name: "a", Window: MinWindow, Max: 5, Policy: Log, Fail: FailOpen}
	out, err := l.WithNumbers(MaxWindow, 7)
	if err != nil || out.Name != "a" || out.Window != MaxWindow || out.Max != 7 || out.Policy != Log || out.Fail != FailOpen || l.Max != 5 {
		t.Errorf("%+v %v", out, err)
	}
	var bad *FieldError
	for _, most := range []int64{0, MaxExactHits + 1} {
		if _, err := l.WithNumbers(MinWindow, most); !errors.As(err, &bad) || !slices.Contains([]string{"max"}, bad.Field) {
			t.Errorf("max %d: %v", most, err)
		}
	}
}
