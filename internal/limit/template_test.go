package limit

import (
	"errors"
	"strings"
	"testing"
)

func TestTemplates(t *testing.T) {
	values := map[string]string{"key": "alice", "ip": "192.0.2.1", "method": "GET", "host": "h", "path": "/a{key}", "header.X-Plan": "gold"}
	for _, c := range []struct{ text, want string }{
		{"{key}", "alice"},
		{"user:{key}", "user:alice"},
		{"{key}:", "alice:"},
		{"{method} {host}{path}", "GET h/a{key}"}, // a value is not a template
		{"{ip} {header.X-Plan}", "192.0.2.1 gold"},
		{"{key}{key}", "alicealice"},
		{"é {key} é", "é alice é"},
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
		if template.String() != c.text {
			t.Errorf("%q is written as %q", c.text, template)
		}
		for variable := range values {
			if uses := strings.Contains(c.text, "{"+variable+"}"); template.Uses(variable) != uses {
				t.Errorf("%q uses %s: %v", c.text, variable, !uses)
			}
		}
	}
}

func TestBadTemplates(t *testing.T) {
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

// The zero template is the key that the request gives, whatever characters it has.
func TestZeroTemplate(t *testing.T) {
	var zero Template
	got, err := zero.Fill(func(variable string) (string, error) { return variable + " {ip}", nil })
	if err != nil || got != "key {ip}" || zero.String() != "{key}" || !zero.Uses(VarKey) || zero.Uses(VarIP) {
		t.Errorf("%q, %v, %q", got, err, zero)
	}
}

func TestTemplateWithAnUnknownValue(t *testing.T) {
	missing := errors.New("the request has no such header")
	template, err := ParseTemplate("{key} {header.X-Plan}")
	if err != nil {
		t.Fatal(err)
	}
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
