package rules

import (
	"errors"
	"slices"
	"strings"
)

// filter is a subject with NATS's wildcards.
type filter struct {
	text   string
	tokens []string
}

// MaxSubject bounds the subject of a rule, in bytes.
const MaxSubject = 1024

var errSubject = errors.New("must be tokens with dots between them, such as orders.*.created or orders.>: * stands for one token, and > at the end for all that follow")

func parseFilter(text string) (filter, error) {
	f := filter{text, strings.Split(text, ".")}
	for i, token := range f.tokens {
		wild := token == "*" || token == ">" && i == len(f.tokens)-1
		if token == "" || !wild && strings.ContainsAny(token, "*>") ||
			strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) || len(text) > MaxSubject {
			return filter{}, errSubject
		}
	}
	return f, nil
}

func (f filter) wildcards() (n int) {
	for _, token := range f.tokens {
		if token == "*" || token == ">" {
			n++
		}
	}
	return n
}

func (f filter) matches(subject []string) bool {
	for i, want := range f.tokens {
		switch {
		case i == len(subject):
			return false
		case want == ">":
			return true
		case want != "*" && want != subject[i]:
			return false
		}
	}
	return len(f.tokens) == len(subject)
}

// captureWildcard returns what a wildcard, counted from 1, matches in a subject that the filter matches.
func (f filter) captureWildcard(wildcard int, subject string, tokens []string) string {
	start := 0
	for i, want := range f.tokens {
		if want == "*" || want == ">" {
			wildcard--
		}
		switch {
		case wildcard > 0:
		case want == ">":
			return subject[start:]
		default:
			return tokens[i]
		}
		start += len(tokens[i]) + len(".")
	}
	return ""
}

func (f filter) overlaps(other filter) bool {
	for i := range min(len(f.tokens), len(other.tokens)) {
		a, b := f.tokens[i], other.tokens[i]
		switch {
		case a == ">" || b == ">":
			return true
		case a != b && a != "*" && b != "*":
			return false
		}
	}
	return len(f.tokens) == len(other.tokens)
}

func checkGlob(text string) error {
	_, err := matchGlob(text, "")
	if err != nil || text == "" || len(text) > 255 || strings.ContainsAny(text, ". \t\r\n>/\\,") {
		return errors.New("must be the name of a stream, or a glob such as ORDERS* or SHOP_?")
	}
	return nil
}

func splitSubject(buffer []string, subject string) []string {
	return slices.AppendSeq(buffer[:0], strings.SplitSeq(subject, "."))
}
