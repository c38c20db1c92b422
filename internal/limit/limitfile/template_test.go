package limitfile

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/tests/cases"
)

func TestTemplatesAreFilledOrRefused(t *testing.T) {
	t.Parallel()
	values := map[string]string{"key": "alice", "ip": "192.0.2.1", "method": "GET", "host": "h", "path": "/a{key}", "header.X-Plan": "gold"}
	cases.Check(t, "templates", func(t *testing.T, _, text string) string {
		template, err := ParseTemplate(text)
		if err != nil {
			return "refused: " + err.Error()
		}
		require.Equal(t, text, template.String())
		for variable := range values {
			require.Equal(t, strings.Contains(text, "{"+variable+"}"), template.Uses(variable), "%s uses %s", text,
				variable)
		}
		got, err := template.Fill(func(variable string) (string, error) { return values[variable], nil })
		require.NoError(t, err)
		return got
	})
}

// Distinct values never share a key, whatever the text between them is. Wherever a key could be cut into
// other values, these make another key.
func TestTemplatesKeepValuesApart(t *testing.T) {
	t.Parallel()
	text := rapid.StringOfN(rapid.SampledFrom([]rune("%20C3A9é a")), 1, 4, -1)
	others := 0
	rapid.Check(t, func(t *rapid.T) {
		before, between := rapid.SampledFrom([]string{"", "2", "% "}).Draw(t, "before"), text.Draw(t, "between")
		template, err := ParseTemplate(before + "{key}" + between + "{ip}")
		if err != nil {
			t.Skip(err)
		}
		fill := func(key, ip string) string {
			out, err := template.Fill(func(variable string) (string, error) { return map[string]string{VarKey: key, VarIP: ip}[variable], nil })
			require.NoError(t, err)
			return out
		}
		key, ip := text.Draw(t, "key"), text.Draw(t, "ip")
		all := strings.TrimPrefix(fill(key, ip), before)
		for i := range all {
			after, found := strings.CutPrefix(all[i:], between)
			if !found {
				continue
			}
			for _, values := range [][2]string{{all[:i], after}, {decoded(all[:i]), decoded(after)}} {
				if values == [2]string{key, ip} {
					continue
				}
				others++
				if fill(values[0], values[1]) == fill(key, ip) {
					t.Fatalf("%s: %q make the key of %q and %q, %q", template, values, key, ip, fill(key, ip))
				}
			}
		}
	})
	if others == 0 {
		t.Error("no key could be cut elsewhere: the test shows nothing")
	}
}

// The caller's key is found by the key that hits are kept under, if that is no hash.
func TestCallersAreFoundByKeys(t *testing.T) {
	t.Parallel()
	text := rapid.StringOfN(rapid.SampledFrom([]rune("%2 a:.é\n")), 1, 4, -1)
	rapid.Check(t, func(t *rapid.T) {
		var l Limit
		var err error
		l.Key, err = ParseTemplate(rapid.SampledFrom([]string{"{key}", "a:{key}", "{method} {key}", "{key}.{ip} {key}:",
			"{ip}", "{ip}: {host}", "{path}"}).Draw(t, "template"))
		require.NoError(t, err)
		values := make(map[string]string)
		for _, variable := range []string{VarKey, VarIP, VarMethod, VarHost, VarPath} {
			values[variable] = text.Draw(t, variable)
		}
		caller, under, err := l.Keys(func(variable string) (string, error) { return values[variable], nil })
		require.NoError(t, err)
		if got := l.Callers()(under); got != caller && !strings.HasPrefix(under, "sha256:") {
			t.Fatalf("%q of %q is of the caller %q, not %q", under, l.Key, caller, got)
		}
	})
}

// decoded is a text without its percent-encoding, if it has one.
func decoded(text string) string {
	if out, err := url.PathUnescape(text); err == nil {
		return out
	}
	return text
}

// The zero template is the key that the request gives, whatever characters it has.
func TestZeroTemplate(t *testing.T) {
	t.Parallel()
	var zero Template
	got, err := zero.Fill(func(variable string) (string, error) { return variable + " {ip}", nil })
	if err != nil || got != "key {ip}" || zero.String() != "{key}" || !zero.Uses(VarKey) || zero.Uses(VarIP) {
		t.Errorf("%q, %v, %q", got, err, zero)
	}
}

func TestTemplateWithAnUnknownValue(t *testing.T) {
	t.Parallel()
	missing := errors.New("the request has no such header")
	template, err := ParseTemplate("{key} {header.X-Plan}")
	require.NoError(t, err)
	_, err = template.Fill(func(variable string) (string, error) {
		name, is := HeaderOf(variable)
		if is && name == "X-Plan" {
			return "", missing
		}
		return "alice", nil
	})
	if !errors.Is(err, missing) || !strings.HasPrefix(err.Error(), "{header.X-Plan}: ") {
		t.Errorf("%v", err)
	}
}
