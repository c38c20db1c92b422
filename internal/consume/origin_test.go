package consume

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/hit"
	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
)

// A reject of an event has what its decoding needs, and nothing else of the message's headers. If that is too
// much, it has nothing of it.
func TestRejectTellsWhereAnEventCameFrom(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<18)
	for _, c := range []struct {
		name string
		kind hit.Kind
		more string // another attribute
		want nats.Header
	}{
		{"event", hit.OfEvent, "a", nats.Header{rejects.HeaderKind: {"event"}, rejects.HeaderSubject: {"hits.e"}, "ce-more": {"a"}, "Content-Type": {"text/plain"}, "Ce-Id": {"1"}}},
		{"message", hit.OfMessage, "a", nats.Header{rejects.HeaderKind: {"message"}, rejects.HeaderSubject: {"hits.e"}, "ce-more": {"a"}, "Content-Type": {"text/plain"}, "Ce-Id": {"1"}}},
		{"hit", hit.OfHit, "a", nats.Header{rejects.HeaderSubject: {"hits.e"}, rejects.HeaderCounter: {"e"}}},
		{"large", hit.OfMessage, long, nats.Header{rejects.HeaderKind: {"message"}}},
	} {
		b := newBuffer(testLayout, testLimits(1000), make([]window.Cursor, testLayout.Shards))
		d := source.Delivery{Subject: "hits.e", Header: nats.Header{
			"ce-more": {c.more}, "Content-Type": {"text/plain"}, "Ce-Id": {"1", "2"}, "Nats-Rollup": {"all"}, "Nats-Msg-Id": {"7"}, "Tallyroll-Reason": {"none"}, "ce-": {"x"},
		}}
		read := message{seq: 1, stored: 1, counter: "e", origin: rejects.NewOrigin(d.Subject, d.Header), rejects: []hit.Reject{{Reason: hit.BadKey, Body: []byte("{}"), Kind: c.kind}}}
		require.NoError(t, b.add("HITS", read))
		rejected := b.drain().rejects[0]
		m, err := rejected.Message(1 << 20)
		require.NoError(t, err)
		got := m.Header
		for _, name := range []string{rejects.HeaderReason, rejects.HeaderDetail, rejects.HeaderStream, rejects.HeaderSequence, rejects.HeaderItem, rejects.HeaderStored, rejects.HeaderNamespace, "Nats-Msg-Id"} {
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
