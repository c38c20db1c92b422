package consume

import "strings"

// subjects finds the counter in a message's subject: it is the part that the wildcards of
// the stream's subject matched.
type subjects struct{ filters [][]string }

func newSubjects(filters []string) subjects {
	var s subjects
	for _, f := range filters {
		s.filters = append(s.filters, strings.Split(f, "."))
	}
	return s
}

// counter joins the tokens that the first matching filter's wildcards matched.
// A filter without wildcards, or no filter at all (a mirror), gives the whole subject.
func (s subjects) counter(subject string) string {
	for _, filter := range s.filters {
		if c, ok := matched(filter, subject); ok {
			return c
		}
	}
	return subject
}

func matched(filter []string, subject string) (counter string, ok bool) {
	rest := subject
	for i, want := range filter {
		if want == ">" && i == len(filter)-1 {
			return join(counter, rest), rest != ""
		}
		token, after, more := strings.Cut(rest, ".")
		switch {
		case token == "", more != (i < len(filter)-1):
			return "", false
		case want == "*":
			counter = join(counter, token)
		case want != token:
			return "", false
		}
		rest = after
	}
	if counter == "" {
		counter = subject
	}
	return counter, true
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "." + b
}
