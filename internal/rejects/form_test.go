package rejects

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// Another subject is believed where publish has put it, and nowhere else.
func TestOriginalSubjectIsBelievedOnlyWherePublishPutsIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ subject, header, want string }{
		{"hits.redrive-HITS-812-0-x", "hits.orders.web", "hits.orders.web"},
		{"redrive-HITS-812-0-x", "orders", "orders"},
		{"hits.redrive.redrive-HITS-1-0-x", "hits.a.b", "hits.a.b"},
		{"hits.redrive-HITS-812-0-x", "", "hits.redrive-HITS-812-0-x"},
		{"hits.redrive-HITS-812-0-x", "hits..web", "hits.redrive-HITS-812-0-x"},
		{"hits.redrive-HITS-812-0-x", "hits.a b", "hits.redrive-HITS-812-0-x"},
		{"hits.redrive-HITS-812-0-x", "hits." + strings.Repeat("x", 1020), "hits.redrive-HITS-812-0-x"},
		{"hits.web", "hits.orders.web", "hits.web"},
		{"hits.redrive", "hits.orders.web", "hits.redrive"},
		{"hits.aredrive-x", "hits.orders.web", "hits.aredrive-x"},
	} {
		h := nats.Header{"Nats-Msg-Id": {"x"}}
		if c.header != "" {
			h[HeaderSubject] = []string{c.header}
		}
		if got := OriginalSubject(c.subject, h); got != c.want {
			t.Errorf("%s with %q: %q, want %q", c.subject, c.header, got, c.want)
		}
	}
	if got := OriginalSubject("hits.redrive-x", nil); got != "hits.redrive-x" {
		t.Errorf("without headers: %q", got)
	}
}
