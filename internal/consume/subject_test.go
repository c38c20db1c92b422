package consume

import (
	"slices"
	"strings"
	"testing"
)

func TestCounterOfASubjectIsFound(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		filters []string
		subject string
		want    string
	}{
		{"one token", []string{"hits.>"}, "hits.checkout", "checkout"},
		{"several tokens", []string{"hits.>"}, "hits.shop.checkout.eu", "shop.checkout.eu"},
		{"partition", []string{"hitp.3.>"}, "hitp.3.api-1", "api-1"},
		{"all subjects", []string{">"}, "shop.checkout", "shop.checkout"},
		{"one wildcard at the end", []string{"hits.*"}, "hits.a", "a"},
		{"a wildcard inside", []string{"site.*.hits"}, "site.shop.hits", "shop"},
		{"two wildcards", []string{"*.hits.*"}, "eu.hits.cart", "eu.cart"},
		{"both kinds", []string{"*.hits.>"}, "eu.hits.cart.add", "eu.cart.add"},
		{"first filter that matches", []string{"a.>", "b.*", "b.>"}, "b.x.y", "x.y"},
		{"the order of the filters decides", []string{"*.x", "a.>"}, "a.x", "a"},
		{"no wildcard", []string{"hits"}, "hits", "hits"},
		{"no wildcard, several tokens", []string{"hits.all"}, "hits.all", "hits.all"},
		{"no filter", nil, "hits.checkout", "hits.checkout"},
		{"no filter matches", []string{"hits.>"}, "other.checkout", "other.checkout"},
		{"the wildcard needs a token", []string{"hits.>"}, "hits", "hits"},
		{"subject too short", []string{"hits.*.*"}, "hits.a", "hits.a"},
		{"subject too long", []string{"hits.*"}, "hits.a.b", "hits.a.b"},
		{"a prefix is no match", []string{"hits.>"}, "hitsx.a", "hitsx.a"},
		{"a part of a token is not a wildcard", []string{"hits.a*"}, "hits.ab", "hits.ab"},
		{"beyond ASCII", []string{"hits.>"}, "hits.größe", "größe"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := newSubjects(test.filters).counter(test.subject); got != test.want {
				t.Errorf("counter of %q on %q is %q, want %q", test.subject, test.filters, got, test.want)
			}
		})
	}
}

// wildcards says the same as matched, on tokens.
func wildcards(filter, subject []string) (counter []string, ok bool) {
	if len(subject) < len(filter) || slices.Contains(subject, "") {
		return nil, false
	}
	for i, want := range filter {
		switch {
		case want == ">" && i == len(filter)-1:
			return append(counter, subject[i:]...), true
		case want == "*":
			counter = append(counter, subject[i])
		case want != subject[i]:
			return nil, false
		}
	}
	return counter, len(subject) == len(filter)
}

func FuzzSubjectCounter(f *testing.F) {
	f.Add("hits.>", "hits.shop.checkout")
	f.Add("*.hits.*", "eu.hits.cart")
	f.Add(">", "a.b")
	f.Add("a.b", "a.b")
	f.Add("", "")
	f.Add("a.>", "a.")
	f.Fuzz(func(t *testing.T, filter, subject string) {
		// The server lets neither an empty token nor one with white space into a subject.
		tokens := strings.Split(subject, ".")
		if slices.Contains(tokens, "") || slices.Contains(strings.Split(filter, "."), "") || strings.ContainsAny(subject+filter, " \t\r\n") {
			newSubjects([]string{filter}).counter(subject) // does not panic
			return
		}
		want := subject
		if counter, ok := wildcards(strings.Split(filter, "."), tokens); ok && len(counter) > 0 {
			want = strings.Join(counter, ".")
		}
		if got := newSubjects([]string{filter}).counter(subject); got != want || got == "" {
			t.Errorf("counter of %q on %q is %q, want %q", subject, filter, got, want)
		}
	})
}
