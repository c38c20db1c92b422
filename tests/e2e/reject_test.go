package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestBadHitsAreFoundAgainAndTheirNeighboursCount(t *testing.T) {
	t.Parallel()
	s := start(t, "INGEST_MAX_HITS=5")
	now := time.Now()
	good := func(key string) string { return fmt.Sprintf(`{"key":%q}`, key) }
	type rejected struct {
		reason, body string
		item         string
		neighbours   int64 // good hits of counter reason in the same message
	}
	var want []rejected
	send := func(reason, bad string) {
		body := good(reason) + "\n" + bad + "\n" + good(reason)
		s.send("hits.bad", body)
		want = append(want, rejected{reason, bad, "1", 2})
	}
	send("bad_json", `{"key":`)
	send("bad_key", `{"key":""}`)
	send("bad_count", `{"n":0}`)
	send("bad_time", `{"ts":"yesterday"}`)
	send("future", fmt.Sprintf(`{"ts":%d}`, now.Add(time.Hour).UnixMilli()))
	send("too_late", fmt.Sprintf(`{"ts":%d}`, now.AddDate(-1, 0, 0).UnixMilli()))
	large := strings.TrimSuffix(strings.Repeat(good("too_large")+"\n", 6), "\n")
	s.send("hits.bad", large)
	want = append(want, rejected{"too_large", large, "0", 0})

	got := s.rejects(uint64(len(want)))
	for i, w := range want {
		h := got[i].Header
		seq := fmt.Sprint(i + 1)
		if string(got[i].Data) != w.body || got[i].Subject != "hits_rejected.HITS" ||
			h.Get("Tallyroll-Reason") != w.reason || h.Get("Tallyroll-Detail") == "" || h.Get("Tallyroll-Stream") != "HITS" ||
			h.Get("Tallyroll-Sequence") != seq || h.Get("Tallyroll-Item") != w.item || h.Get("Nats-Msg-Id") != "HITS:"+seq+":"+w.item {
			t.Errorf("reject %d on %s: %q with %v; want %+v", i, got[i].Subject, got[i].Data, h, w)
		}
		stack.EventuallyTotal(t, s.query.URL(), w.reason, "24h", w.neighbours)
	}

	// Counting all again from an empty Redis rejects nothing twice.
	s.ingest.Stop()
	require.NoError(t, s.redis.Client().FlushAll(t.Context()).Err())
	s.ingest.Start()
	stack.EventuallyTotal(t, s.query.URL(), "too_late", "24h", 2)
	s.send("hits.last", "")
	stack.EventuallyTotal(t, s.query.URL(), "last", "24h", 1)
	stream, err := s.js.Stream(t.Context(), "HITS_REJECTED")
	require.NoError(t, err)
	if n := stream.CachedInfo().State.Msgs; n != uint64(len(want)) {
		t.Errorf("after a replay HITS_REJECTED has %d messages; want %d", n, len(want))
	}
}

func TestARejectAsLargeAsAMessageIsStored(t *testing.T) {
	t.Parallel()
	s := start(t)
	body := "x" + strings.Repeat("y", 1<<20-1) // the server's max_payload: no room for headers
	s.send("hits.big", body)
	s.send("hits.next", "")
	stack.EventuallyTotal(t, s.query.URL(), "next", "24h", 1)
	var got string
	for i, part := range s.rejects(2) {
		if p := part.Header.Get("Tallyroll-Part"); p != fmt.Sprintf("%d/2", i+1) {
			t.Errorf("part %d says %q", i+1, p)
		}
		got += string(part.Data)
	}
	if got != body {
		t.Errorf("the parts make %d bytes that differ from the %d sent", len(got), len(body))
	}
}
