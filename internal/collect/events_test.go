package collect

import (
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
const eventRules = "- {stream: HITS, subject: hits.>, format: cloudevents, count: [{key: '{type}'}, {key: cents, n: data.cents, optional: true}]}"

func event(id string) string {
	return fmt.Sprintf(`{"specversion":"1.0","type":"paid","source":"/shop","id":%q,"data":{"cents":5}}`, id)
}

// binary are the headers of an event in binary mode, and others.
func binary(id string, more ...string) []string {
	return append([]string{"ce-specversion", "1.0", "ce-type", "paid", "ce-source", "/shop", "ce-id", id, "Content-Type", "application/json"}, more...)
}

// counted is what a worker with eventRules makes of everything in the stream.
func (r *rig) counted() map[string]int64 {
	r.t.Helper()
	set, err := rules.Parse([]byte(eventRules))
	require.NoError(r.t, err)
	d := rules.NewDecoder(set.For("HITS"), hit.Limits{MaxHits: 10_000, MaxAhead: 10e9, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" }})
	out := make(map[string]int64)
	for seq := range r.messages() {
		m, err := r.stream.GetMsg(r.t.Context(), seq+1)
		require.NoError(r.t, err)
		hits, rejects, _ := d.Decode(rules.Message{Subject: m.Subject, Header: m.Header.Get, Stored: m.Time.UnixMilli(), Body: m.Data})
		if len(rejects) > 0 {
			r.t.Errorf("a worker refuses %v %s: %+v", m.Header, m.Data, rejects)
		}
		for _, h := range hits {
			out[string(h.Counter)] += h.N
		}
	}
	return out
}

// Events of each mode are stored as messages of their own, which a worker's rules count.
func TestEventsAreStored(t *testing.T) {
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
		{`{"cents":5}`, binary("6"), 1},
		{`{"cents":5}`, binary("t%C3%A4t", "ce-tenant", "a"), 1},
		{`{"cents":5}`, binary("7")[:8], 1}, // net/http says no type
	} {
		got := r.stored(c.body, c.headers...)
		if got.Stored != c.events || got.Sequence != uint64(i+1) || got.Duplicate {
			t.Errorf("%d: %+v", i, got)
		}
	}
	if got := r.counted(); len(got) != 2 || got["paid"] != 8 || got["cents"] != 40 {
		t.Errorf("a worker counts %v", got)
	}
}

// A rule can make a unique value of what an event of each mode holds.
func TestEventsHaveUniqueValues(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.stored(`{"specversion":"1.0","type":"paid","source":"/shop","id":"1","data":{"user":"u1"}}`, "Content-Type", structuredType)
	r.stored(`[{"specversion":"1.0","type":"paid","source":"/shop","id":"2","data":{"user":"u2"}}]`, "Content-Type", batchType)
	r.stored(`{"user":"u3"}`, binary("3")...)
	set, err := rules.Parse([]byte("- {stream: HITS, subject: hits.>, format: cloudevents, count: [{key: paid, unique: '{data.user}'}]}"))
	require.NoError(t, err)
	d := rules.NewDecoder(set.For("HITS"), hit.Limits{MaxHits: 10, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" }})
	for seq := range r.messages() {
		m, err := r.stream.GetMsg(t.Context(), seq+1)
		require.NoError(t, err)
		hits, rejects, _ := d.Decode(rules.Message{Subject: m.Subject, Header: m.Header.Get, Stored: m.Time.UnixMilli(), Body: m.Data})
		if want := fmt.Sprint("u", seq+1); len(hits) != 1 || string(hits[0].Unique) != want {
			t.Errorf("%s: %v, rejects %+v; want one of %s", m.Data, hits, rejects, want)
		}
	}
}

// A producer that sends an event again is told where it is. An event with the same name and something else in it is
// refused, because either of them would be lost.
func TestAnEventIsStoredOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, c := range [][]string{{event("1"), "Content-Type", structuredType}, append([]string{`{"cents":5}`}, binary("2", "ce-traceparent", "00-1-1-00")...)} {
		first := r.stored(c[0], c[1:]...)
		again := r.stored(c[0], c[1:]...)
		if first.Duplicate || !again.Duplicate || again.Sequence != first.Sequence {
			t.Errorf("%+v, then %+v", first, again)
		}
		require.Contains(t, r.refuses(http.StatusUnprocessableEntity, strings.Replace(c[0], "5", "6", 1), c[1:]...).Detail, "source and id")
	}
	first := r.stored(`{"cents":5}`, binary("ä b", "ce-plan", "pro max")...)
	for _, same := range [][]string{binary(`"ä b"`, "ce-plan", `"pro max"`), binary("%C3%A4%20b", "ce-plan", "pro%20max"), binary(`"\ä%20b"`, "ce-plan", "%70ro max")} {
		if again := r.stored(`{"cents":5}`, same...); !again.Duplicate || again.Sequence != first.Sequence {
			t.Errorf("%q is another event: %+v, and the first is %+v", same, again, first)
		}
	}
	if !r.stored(`{"cents":5}`, binary("2", "ce-traceparent", "00-1-2-00")...).Duplicate {
		t.Error("a retry with another trace is not known")
	}
	r.refuses(http.StatusUnprocessableEntity, `{"cents":5}`, binary("2", "ce-tenant", "b")...)
	batch := "[" + event("1") + "]" // a batch has no name by itself
	for _, repeated := range []bool{false, true} {
		if r.stored(batch, "Content-Type", batchType).Duplicate {
			t.Error("a batch is a duplicate")
		}
		require.Equal(t, repeated, r.stored(batch, "Content-Type", batchType, keyHeader, "k").Duplicate, "a batch's key is not heeded")
	}
	if r.stored(event("1"), "Content-Type", structuredType, keyHeader, "other").Duplicate {
		t.Error("the source and id count beside a key")
	}
}

// An event names no key, so a token with a prefix opens nothing for it. The names of events are each caller's own.
func TestEventsOfCallers(t *testing.T) {
	t.Parallel()
	r := named(t)
	require.Contains(t, r.refuses(http.StatusForbidden, event("1"), "Content-Type", structuredType, "Authorization", "Bearer shop").Detail, "the token shop is about some counters only")
	r.refuses(http.StatusUnauthorized, event("1"), "Content-Type", structuredType)
	if r.stored(event("1"), "Content-Type", structuredType, "Authorization", "Bearer all").Duplicate {
		t.Error("a duplicate")
	}
	m, err := r.stream.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	if id := m.Header.Get(nats.MsgIdHdr); !strings.HasPrefix(id, `"all"cloudevent `) {
		t.Errorf("its id is %q", id)
	}
}
