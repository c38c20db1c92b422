package limit

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTemplates(t *testing.T) {
	t.Parallel()
	values := map[string]string{"key": "alice", "ip": "192.0.2.1", "method": "GET", "host": "h", "path": "/a{key}", "header.X-Plan": "gold"}
	for _, c := range []struct{ text, want string }{
		{"{key}", "alice"},
		{"user:{key}", "user:alice"},
		{"{key}:", "alice:"},
		{"{method} {host} {path}", "GET h /a{key}"}, // a value is not a template
		{"{ip} {header.X-Plan}", "192.0.2.1 gold"},
		{"{key}/{key}", "alice/alice"},
		{"é {key} é", "é alice é"},
		{"{path} {key}", "/a{key} alice"},
		{"c{key} {key}", "calice alice"}, // only what is between the variables is encoded
		{"{key}ice{key}", "al%69%63%65iceal%69%63%65"},
	} {
		template, err := ParseTemplate(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		got, err := template.Fill(func(variable string) (string, error) { return values[variable], nil })
		if err != nil || got != c.want {
			t.Errorf("%q: %q, %v; want %q", c.text, got, err, c.want)
		}
		require.EqualValues(t, c.text, template.String())
		for variable := range values {
			if uses := strings.Contains(c.text, "{"+variable+"}"); template.Uses(variable) != uses {
				t.Errorf("%q uses %s: %v", c.text, variable, !uses)
			}
		}
	}
}

func TestBadTemplates(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "key", "{", "}", "{}", "{key", "key}", "{key}}", "{{key}}", "{key}{", "{Key}", "{ key }", "{key}{user}", "{header}", "{header.}", "user:{user}",
	} {
		template, err := ParseTemplate(text)
		if err == nil {
			t.Errorf("%q was taken for %q", text, template)
			continue
		}
		for _, allowed := range []string{"{key}", "{ip}", "{method}", "{host}", "{path}", "{header.NAME}"} {
			if !strings.Contains(err.Error(), allowed) {
				t.Errorf("%q: the error does not say that %s is allowed: %v", text, allowed, err)
			}
		}
	}
}

// Between two variables there is text by which their values can be told apart.
func TestVariablesSideBySide(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"{key}{ip}", "{method} {host}{path}", "{key}{key}", "{key}{header.X-Plan} ", "{key}%{ip}", "{key}:%:{ip}", "a{ip}{key}b"} {
		_, err := ParseTemplate(text)
		require.ErrorIs(t, err, errBetween, text)
	}
	for _, text := range []string{"%{key}", "{key}%", "%{key} {ip}%"} {
		require.NoError(t, errOf(ParseTemplate(text)), text)
	}
}

// Different values never share a key, whatever the text between them is. Wherever a key could be cut into other
// values, these make another key.
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
