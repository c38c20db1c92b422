package redrive

import (
	"io"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/rejects"
)

// refuseEvent stores a reject of an event as a worker does; headers are name and value in turn.
func (r refusing) refuseEvent(seq int, reason hit.Reason, kind hit.Kind, body string, headers ...string) {
	r.t.Helper()
	h := r.header("HITS", seq, reason)
	h.Set(rejects.HeaderKind, string(kind))
	for i := 0; i < len(headers); i += 2 {
		h[headers[i]] = []string{headers[i+1]}
	}
	r.store("HITS", body, h)
}

// Events go out as they are, with what their decoding needs, whatever --ts says.
func TestRedriveSendsEventsAsTheyAre(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	const of = rejects.HeaderSubject
	r.refuseEvent(1, hit.NoRule, hit.OfMessage, "", of, "hits.a", "ce-id", "7", "Content-Type", "text/plain", "X-Other", "all")
	r.refuseEvent(2, hit.NoRule, hit.OfEvent, `{"id":"8"}`, of, "hits.b")
	r.refuseEvent(3, hit.NoRule, hit.OfEvent, `{"id":"9"}`) // its headers left no room
	r.refuseEvent(4, hit.BadKey, hit.OfEvent, `{"ts":1}`, of, "hits.b")
	r.refuseEvent(5, hit.TooLate, hit.OfEvent, `{"at":1}`, of, "hits.b")
	r.refuseEvent(6, hit.BadJSON, hit.OfEvent, `["x"]`, of, "hits.b")
	r.refuseEvent(7, hit.TooLarge, hit.OfEvent, `{"one":1}`, of, "hits.b")
	got := r.redrive(t.Context(), io.Discard, "--ts", "now")
	r.wantSent(got, 2, 0)
	r.want("HITS", "", `{"id":"8"}`)
	for _, want := range []string{
		"left 5: 1 bad_json (would be refused again by the same rules; ", "1 bad_key (would be refused again by the same rules; ", "1 no_rule (its subject is unknown",
		"1 too_large (counts only with a larger INGEST_MAX_HITS; ", "1 too_late (would be refused again as it is: --ts does not change the time of an event; ",
	} {
		require.Contains(t, got.String(), want)
	}
	r.wantSent(r.redrive(t.Context(), io.Discard, "--ts", "stored", "--reason", "bad_key,too_late,bad_json,too_large"), 3, 0)
	r.want("HITS", "", `{"id":"8"}`, `{"ts":1}`, `{"at":1}`, `{"one":1}`)
	stream, err := r.js.Stream(t.Context(), "HITS")
	require.NoError(t, err)
	for seq, want := range []nats.Header{{rejects.HeaderNamespace: {hit.DefaultNamespace}, of: {"hits.a"}, "ce-id": {"7"}, "Content-Type": {"text/plain"}}, {rejects.HeaderNamespace: {hit.DefaultNamespace}, of: {"hits.b"}}} {
		m, err := stream.GetMsg(t.Context(), uint64(seq+1))
		require.NoError(t, err)
		if len(m.Header) != len(want)+2 { // and those by which it is stored once
			t.Errorf("message %d has %v", seq+1, m.Header)
		}
		for name, values := range want {
			if len(m.Header[name]) != 1 || m.Header[name][0] != values[0] {
				t.Errorf("message %d: %s is %v, want %v", seq+1, name, m.Header[name], values)
			}
		}
	}
}
