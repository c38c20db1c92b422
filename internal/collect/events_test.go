package collect

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/rules"
)

// eventRules count events by type, and the cents in their data.
const eventRules = `
- stream: HITS
  subject: hits.>
  format: cloudevents
  count: [{key: '{type}'}, {key: cents, n: data.cents, optional: true}]
`

func event(id string) string {
	return fmt.Sprintf(`{"specversion":"1.0","type":"paid","source":"/shop","id":%q,"data":{"cents":5}}`, id)
}

// eventHeaders are the headers of an event in binary mode, and others.
func eventHeaders(id string, more ...string) []string {
	event := []string{"ce-specversion", "1.0", "ce-type", "paid", "ce-source", "/shop", "ce-id", id, "Content-Type", "application/json"}
	return append(event, more...)
}

// decodeEvents is what a worker with rules makes of all messages in the stream.
func (r *rig) decodeEvents(text string) (all []hit.Hit) {
	r.t.Helper()
	set, err := rules.Parse([]byte(text))
	require.NoError(r.t, err)
	d := rules.NewDecoder(set.For("HITS"), decoderLimits)
	for _, m := range r.storedMessages() {
		message := rules.Message{Subject: m.Subject, Header: m.Header.Get, Stored: m.Time.UnixMilli(), Body: m.Data}
		hits, rejects, _ := d.Decode(message)
		require.Empty(r.t, rejects, "a worker refuses %v %s", m.Header, m.Data)
		for _, h := range hits { // the next message's overwrite them
			all = append(all, hit.Hit{Counter: bytes.Clone(h.Counter), N: h.N, At: hit.NoTime, Unique: bytes.Clone(h.Unique)})
		}
	}
	return all
}

func TestEventsOfEachModeAreStoredAsMessagesOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for i, c := range []struct {
		body    string
		headers []string
		events  int
	}{
		{event("1"), []string{"Content-Type", structuredType}, 1},
		{"\n" + event("2") + " ", []string{"Content-Type", "application/CloudEvents+JSON; charset=utf-8"}, 1},
		{pack(t, "gzip", event("3")), []string{"Content-Type", structuredType, "Content-Encoding", "gzip"}, 1},
		{"[" + event("4") + "," + event("5") + "]", []string{"Content-Type", batchType}, 2},
		{`{"cents":5}`, eventHeaders("6"), 1},
		{`{"cents":5}`, eventHeaders("t%C3%A4t", "ce-tenant", "a"), 1},
		{`{"cents":5}`, eventHeaders("7")[:8], 1}, // net/http says no type
	} {
		require.Equal(t, receipt{c.events, "HITS", uint64(i + 1), false}, r.mustStore(c.body, c.headers...))
	}
	counted := make(map[string]int64)
	for _, h := range r.decodeEvents(eventRules) {
		counted[string(h.Counter)] += h.N
	}
	require.Equal(t, map[string]int64{"paid": 8, "cents": 40}, counted)
}

func TestUniqueValuesAreMadeOfEventsOfEachMode(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.mustStore(`{"specversion":"1.0","type":"paid","source":"/shop","id":"1","data":{"user":"u1"}}`, "Content-Type", structuredType)
	r.mustStore(`[{"specversion":"1.0","type":"paid","source":"/shop","id":"2","data":{"user":"u2"}}]`, "Content-Type", batchType)
	r.mustStore(`{"user":"u3"}`, eventHeaders("3")...)
	const text = "- {stream: HITS, subject: hits.>, format: cloudevents, count: [{key: paid, unique: '{data.user}'}]}"
	require.Equal(t, "paid×1 of u1 paid×1 of u2 paid×1 of u3", format(r.decodeEvents(text)...))
}

// A producer that sends an event again is told where it is. An event with the same name and something else in it is
// refused, because either of them would be lost.
func TestEventSentAgainIsStoredOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, c := range [][]string{
		{event("1"), "Content-Type", structuredType},
		append([]string{`{"cents":5}`}, eventHeaders("2", "ce-traceparent", "00-1-1-00")...),
	} {
		first := r.mustStore(c[0], c[1:]...)
		require.False(t, first.Duplicate)
		require.Equal(t, receipt{1, "HITS", first.Sequence, true}, r.mustStore(c[0], c[1:]...))
		require.Contains(t, r.mustRefuse(http.StatusUnprocessableEntity, strings.Replace(c[0], "5", "6", 1), c[1:]...).Detail, "source and id")
	}
	first := r.mustStore(`{"cents":5}`, eventHeaders("ä b", "ce-plan", "pro max")...)
	for _, same := range [][]string{
		eventHeaders(`"ä b"`, "ce-plan", `"pro max"`), eventHeaders("%C3%A4%20b", "ce-plan", "pro%20max"),
		eventHeaders(`"\ä%20b"`, "ce-plan", "%70ro max"),
	} {
		require.Equal(t, receipt{1, "HITS", first.Sequence, true}, r.mustStore(`{"cents":5}`, same...), same)
	}
	retry := r.mustStore(`{"cents":5}`, eventHeaders("2", "ce-traceparent", "00-1-2-00")...)
	require.True(t, retry.Duplicate, "with another trace")
	r.mustRefuse(http.StatusUnprocessableEntity, `{"cents":5}`, eventHeaders("2", "ce-tenant", "b")...)
	batch := "[" + event("1") + "]" // a batch has no name by itself
	for _, repeated := range []bool{false, true} {
		require.False(t, r.mustStore(batch, "Content-Type", batchType).Duplicate)
		require.Equal(t, repeated, r.mustStore(batch, "Content-Type", batchType, keyHeader, "k").Duplicate, "a batch's key is not heeded")
	}
	require.False(t, r.mustStore(event("1"), "Content-Type", structuredType, keyHeader, "other").Duplicate, "the source and id count beside a key")
}

func TestEventsOfACallerHaveIDsOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRigWithTokens(t)
	r.mustStore(event("1"), "Content-Type", structuredType, "Authorization", "Bearer all")
	require.Regexp(t, `^"all"cloudevent `, r.storedMessages()[0].Header.Get(nats.MsgIdHdr))
}
