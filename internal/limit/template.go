package limit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Template makes the key of a limit from what a caller knows, as in "user:{key}" or
// "{ip} {header.X-Plan}". The zero Template is "{key}".
type Template struct{ parts []part }

// part is a piece of text, or a variable.
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

var errTemplate = errors.New("allowed is text with {key}, {ip}, {method}, {host}, {path} and {header.NAME} in it, at least one of them")

// ParseTemplate reads a template.
func ParseTemplate(text string) (Template, error) {
	var t Template
	variables := 0
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
		if !closed || !knownVariable(name) {
			return Template{}, errTemplate
		}
		t.parts = append(t.parts, part{variable: name})
		variables++
		rest = after
	}
	if variables == 0 {
		return Template{}, errTemplate
	}
	return t, nil
}

func knownVariable(name string) bool {
	header, is := strings.CutPrefix(name, varHeader)
	return is && header != "" || slices.Contains([]string{VarKey, VarIP, VarMethod, VarHost, VarPath}, name)
}

// HeaderOf returns the name of the header that a variable stands for.
func HeaderOf(variable string) (name string, ok bool) { return strings.CutPrefix(variable, varHeader) }

// Uses reports whether the template has that variable.
func (t Template) Uses(variable string) bool {
	if t.parts == nil {
		return variable == VarKey
	}
	return slices.Contains(t.parts, part{variable: variable})
}

// Fill puts in the values of the variables. A value that is not known is an error of lookup.
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
		out.WriteString(value)
	}
	return out.String(), nil
}

// String returns the template as it is written.
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
