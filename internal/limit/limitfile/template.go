package limitfile

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"tallyroll/internal/limit"
)

// Template makes a limit's key, as in "user:{key}" or "{ip} {header.X-Plan}". The zero Template is "{key}".
//
// Distinct values never make the same key: text separates variables, and its characters are percent-encoded
// in the values.
type Template struct {
	parts   []part
	between string // the characters that are encoded in values; empty if there is one variable
}

type part struct{ text, variable string }

// The variables of a template, besides header.NAME.
const (
	VarKey    = "key"    // the key that the request gives
	VarIP     = "ip"     // the client's address
	VarMethod = "method" // of the request that is decided about, and so on
	VarHost   = "host"
	VarPath   = "path"
	varHeader = "header."
)

var errBetween = errors.New("between two variables is no text, or a %: write other text there, such as a space, so " +
	"that their values can be told apart")

var errTemplate = errors.New("must be text with at least one of {key}, {ip}, {method}, {host}, {path} and " +
	"{header.NAME} in it, and no other braces")

func ParseTemplate(text string) (Template, error) {
	var t Template
	variables, between := 0, ""
	for rest := text; rest != ""; {
		before, after, found := strings.Cut(rest, "{")
		if strings.Contains(before, "}") {
			return Template{}, errTemplate
		}
		if before != "" {
			t.parts = append(t.parts, part{text: before})
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed || !isVariable(name) {
			return Template{}, errTemplate
		}
		t.parts = append(t.parts, part{variable: name})
		if variables++; variables > 1 {
			if before == "" || strings.Contains(before, "%") {
				return Template{}, errBetween
			}
			between += before
		}
		rest = after
	}
	if variables == 0 {
		return Template{}, errTemplate
	}
	if variables > 1 {
		t.between = between + "%"
	}
	return t, nil
}

func isVariable(name string) bool {
	header, found := strings.CutPrefix(name, varHeader)
	return found && header != "" || slices.Contains([]string{VarKey, VarIP, VarMethod, VarHost, VarPath}, name)
}

// HeaderVariable returns the variable of a header.
func HeaderVariable(name string) string { return varHeader + name }

// SameVariable compares variables; names of headers without regard to case.
func SameVariable(a, b string) bool {
	headerA, isA := HeaderOf(a)
	headerB, isB := HeaderOf(b)
	return a == b || isA && isB && strings.EqualFold(headerA, headerB)
}

// HeaderOf returns the header of a variable.
func HeaderOf(variable string) (name string, ok bool) { return strings.CutPrefix(variable, varHeader) }

// Uses reports whether the template contains the variable.
func (t Template) Uses(variable string) bool {
	if t.parts == nil {
		return variable == VarKey
	}
	return slices.Contains(t.parts, part{variable: variable})
}

// encode reversibly escapes what could be text between variables, so distinct values stay distinct.
func (t Template) encode(value string) string {
	if !strings.ContainsAny(value, t.between) {
		return value
	}
	var out strings.Builder
	for len(value) > 0 {
		_, size := utf8.DecodeRuneInString(value)
		character := value[:size]
		value = value[size:]
		if !strings.Contains(t.between, character) {
			out.WriteString(character)
			continue
		}
		for _, b := range []byte(character) {
			fmt.Fprintf(&out, "%%%02X", b)
		}
	}
	return out.String()
}

// Variables returns the template's variables in order.
func (t Template) Variables() []string {
	if t.parts == nil {
		return []string{VarKey}
	}
	var out []string
	for _, p := range t.parts {
		if p.variable != "" {
			out = append(out, p.variable)
		}
	}
	return out
}

// Fill inserts the variables' values. lookup returns an error for an unknown one.
func (t Template) Fill(lookup func(variable string) (string, error)) (string, error) {
	if t.parts == nil {
		return lookup(VarKey)
	}
	var out strings.Builder
	for _, p := range t.parts {
		if p.variable == "" {
			out.WriteString(p.text)
			continue
		}
		value, err := lookup(p.variable)
		if err != nil {
			return "", fmt.Errorf("{%s}: %w", p.variable, err)
		}
		out.WriteString(t.encode(value))
	}
	return out.String(), nil
}

// Keys returns the key that hits are kept under, and the caller's, of which the hash tag is made; value
// returns the variables' values. The caller's depends only on the other, because otherwise hits of one key
// would be in several places. Limits of one caller get the same tag where possible.
func (l *Limit) Keys(value func(variable string) (string, error)) (caller, under string, err error) {
	under, err = l.Key.Fill(value)
	if err != nil {
		return "", "", err
	}
	caller = under
	if i := slices.IndexFunc([]string{VarKey, VarIP}, l.Key.Uses); i >= 0 {
		caller, err = value([]string{VarKey, VarIP}[i])
	}
	return limit.KeyOf(caller), limit.KeyOf(under), err
}

// Callers returns a function that finds the caller's key by the key that hits are kept under. Of a hash it
// returns the hash.
func (l *Limit) Callers() func(under string) string {
	i := slices.IndexFunc([]string{VarKey, VarIP}, l.Key.Uses)
	if l.Key.parts == nil || i < 0 {
		return func(under string) string { return under }
	}
	pattern := ""
	for _, p := range l.Key.parts {
		switch p.variable {
		case "":
			pattern += regexp.QuoteMeta(p.text)
		case []string{VarKey, VarIP}[i]:
			pattern += "(.*?)"
		default:
			pattern += ".*?"
		}
	}
	filled := regexp.MustCompile("(?s)^" + pattern + "$")
	return func(under string) string {
		m := filled.FindStringSubmatch(under)
		if m == nil {
			return under
		}
		if caller, err := url.PathUnescape(m[1]); err == nil && l.Key.between != "" {
			m[1] = caller
		}
		return limit.KeyOf(m[1])
	}
}

func (t Template) String() string {
	if t.parts == nil {
		return "{" + VarKey + "}"
	}
	var out strings.Builder
	for _, p := range t.parts {
		out.WriteString(p.text)
		if p.variable != "" {
			out.WriteString("{" + p.variable + "}")
		}
	}
	return out.String()
}
