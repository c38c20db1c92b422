package consume

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/hit"
	"tallyroll/internal/window"
)

// Another subject is believed where publish has put it, and nowhere else.
func TestOriginalSubject(t *testing.T) {
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
		d := delivery{subject: c.subject, header: nats.Header{"Nats-Msg-Id": {"x"}}}
		if c.header != "" {
			d.header[hit.HeaderSubject] = []string{c.header}
		}
		if got := originalSubject(d); got != c.want {
			t.Errorf("%s with %q: %q, want %q", c.subject, c.header, got, c.want)
		}
	}
	if got := originalSubject(delivery{subject: "hits.redrive-x"}); got != "hits.redrive-x" {
		t.Errorf("without headers: %q", got)
	}
}

// A reject of an event has what its decoding needs, and nothing else of the message's headers. If that is too much, it
// has nothing of it.
func TestRejectTellsWhereAnEventCameFrom(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<18)
	for _, c := range []struct {
		name string
		kind hit.Kind
		more string // another attribute
		want nats.Header
	}{
		{"event", hit.OfEvent, "a", nats.Header{hit.HeaderKind: {"event"}, hit.HeaderSubject: {"hits.e"}, "ce-more": {"a"}, "Content-Type": {"text/plain"}, "Ce-Id": {"1"}}},
		{"message", hit.OfMessage, "a", nats.Header{hit.HeaderKind: {"message"}, hit.HeaderSubject: {"hits.e"}, "ce-more": {"a"}, "Content-Type": {"text/plain"}, "Ce-Id": {"1"}}},
		{"hit", hit.OfHit, "a", nats.Header{hit.HeaderSubject: {"hits.e"}, hit.HeaderCounter: {"e"}}},
		{"large", hit.OfMessage, long, nats.Header{hit.HeaderKind: {"message"}}},
	} {
		b := newBuffer(testLayout, testLimits(1000), make([]window.Cursor, testLayout.Shards))
		d := delivery{subject: "hits.e", header: nats.Header{
			"ce-more": {c.more}, "Content-Type": {"text/plain"}, "Ce-Id": {"1", "2"}, "Nats-Rollup": {"all"}, "Nats-Msg-Id": {"7"}, "Tallyroll-Reason": {"none"}, "ce-": {"x"},
		}}
		m := message{seq: 1, stored: 1, counter: "e", origin: newOrigin(d), rejects: []hit.Reject{{Reason: hit.BadKey, Body: []byte("{}"), Kind: c.kind}}}
		if err := b.add("HITS", m); err != nil {
			t.Fatal(err)
		}
		rejected := b.take().rejects[0]
		messages, err := rejected.messages(1 << 20)
		if err != nil || len(messages) != 1 {
			t.Fatalf("%s: %d messages, %v", c.name, len(messages), err)
		}
		got := messages[0].Header
		for _, name := range []string{hit.HeaderReason, hit.HeaderDetail, hit.HeaderStream, hit.HeaderSequence, hit.HeaderItem, hit.HeaderStored, hit.HeaderNamespace, "Nats-Msg-Id"} {
			if len(got[name]) != 1 || got[name][0] == "none" || got[name][0] == "7" {
				t.Errorf("%s: %s is %q", c.name, name, got[name])
			}
			delete(got, name)
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: the rest is %.200v", c.name, got)
		}
		for name, values := range c.want {
			if len(got[name]) != 1 || got[name][0] != values[0] {
				t.Errorf("%s: %s is %.100q, want %q", c.name, name, got[name], values)
			}
		}
	}
}
