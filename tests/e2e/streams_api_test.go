package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// streamsAnswer and rejectsAnswer are what /v1/streams and /v1/rejects answer.
type streamsAnswer struct {
	Streams []struct {
		Stream, Worker string
		Exists         bool
		Last           uint64    `json:"last_sequence"`
		Applied        uint64    `json:"applied_sequence"`
		LagMessages    uint64    `json:"lag_messages"`
		LagSeconds     float64   `json:"lag_seconds"`
		AsOf           time.Time `json:"as_of"`
		Rejects        uint64
	}
	Workers []struct {
		Worker, Status string
		Streams        []string
	}
}

type rejectsAnswer struct {
	Stored  uint64
	Reasons []struct {
		Reason string
		Count  int
	}
	Rejects []struct {
		Reason, Detail, Stream, Body string
		Sequence, Position           uint64
		Item, Bytes                  int
	}
}

// eventuallyAnswers asks until the answer is fine.
func eventuallyAnswers[A any](t *testing.T, address, what string, fine func(A) bool) (out A) {
	t.Helper()
	stack.Eventually(t, what, func() (bool, string) {
		status, body, err := stack.Do(http.MethodGet, address, nil)
		if err != nil || status != http.StatusOK {
			return false, fmt.Sprint(status, string(body), err)
		}
		out = *new(A)
		err = json.Unmarshal(body, &out)
		return err == nil && fine(out), fmt.Sprint(string(body), err)
	})
	return out
}

// /v1/streams names the worker of a stream, its lag, and that nobody reads it when the worker is dead.
func TestStreamsNameTheirWorkers(t *testing.T) {
	t.Parallel()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATS(t)}
	s.ingest = stack.Ingest(t, s.nats, s.redis, "INGEST_WORKER=first")
	s.query = stack.Query(t, s.redis, "NATS_URL="+s.nats.URL())
	s.js = s.nats.JetStream()
	for range 3 {
		s.send("hits.a", "")
	}
	address := s.query.URL() + "/v1/streams"
	got := eventuallyAnswers(t, address, "three messages to be applied", func(a streamsAnswer) bool {
		return len(a.Streams) == 1 && a.Streams[0].Applied == 3 && a.Streams[0].Worker != "" && len(a.Workers) == 1
	})
	first := got.Streams[0]
	if first.Stream != "HITS" || first.Worker != "first" || !first.Exists || first.Last != 3 || first.LagMessages != 0 || first.LagSeconds != 0 || time.Since(first.AsOf) > time.Minute {
		t.Errorf("%+v", first)
	}
	if w := got.Workers[0]; w.Worker != "first" || w.Status != s.ingest.Addr() || len(w.Streams) != 1 || w.Streams[0] != "HITS" {
		t.Errorf("%+v", w)
	}

	s.ingest.Kill()
	s.send("hits.a", "")
	s.send("hits.a", "")
	dead := eventuallyAnswers(t, address, "no worker", func(a streamsAnswer) bool {
		return len(a.Workers) == 0 && a.Streams[0].Worker == "" && a.Streams[0].LagMessages == 2 && a.Streams[0].LagSeconds > 0
	}).Streams[0]
	later := eventuallyAnswers(t, address, "the lag to grow", func(a streamsAnswer) bool { return a.Streams[0].LagSeconds > dead.LagSeconds }).Streams[0]
	if !later.AsOf.Equal(dead.AsOf) || later.Applied != 3 {
		t.Errorf("without a worker it goes from %+v to %+v", dead, later)
	}

	stack.Ingest(t, s.nats, s.redis, "INGEST_WORKER=second")
	eventuallyAnswers(t, address, "the second worker to catch up", func(a streamsAnswer) bool {
		return len(a.Workers) == 1 && a.Streams[0].Worker == "second" && a.Streams[0].LagMessages == 0 && a.Streams[0].AsOf.After(later.AsOf)
	})
}

// /v1/rejects tells of each hit that was refused what it was, where, and why.
func TestRejectsAreTold(t *testing.T) {
	t.Parallel()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATS(t)}
	s.ingest = stack.Ingest(t, s.nats, s.redis)
	s.query = stack.Query(t, s.redis, "NATS_URL="+s.nats.URL())
	s.js = s.nats.JetStream()
	s.createStream("HITS_MORE", "more.>")
	s.send("hits.a", `{"key":"a"}`+"\n"+`{"key":`)
	s.send("more.a", `{"n":0}`)
	base := s.query.URL() + "/v1/rejects?"
	got := eventuallyAnswers(t, base, "two rejects", func(a rejectsAnswer) bool { return len(a.Rejects) == 2 })
	if got.Stored != 2 || len(got.Reasons) != 2 {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		params               url.Values
		reason, stream, body string
		item                 int
	}{
		{url.Values{"stream": {"HITS"}}, "bad_json", "HITS", `{"key":`, 1},
		{url.Values{"reason": {"bad_json"}}, "bad_json", "HITS", `{"key":`, 1},
		{url.Values{"stream": {"HITS_MORE"}}, "bad_count", "HITS_MORE", `{"n":0}`, 0},
	} {
		found := eventuallyAnswers(t, base+c.params.Encode(), "one reject", func(a rejectsAnswer) bool { return len(a.Rejects) == 1 })
		r := found.Rejects[0]
		if r.Reason != c.reason || r.Stream != c.stream || r.Body != c.body || r.Bytes != len(c.body) || r.Item != c.item || r.Sequence != 1 || r.Detail == "" {
			t.Errorf("%v: %+v", c.params, r)
		}
	}
	eventuallyAnswers(t, s.query.URL()+"/v1/streams", "the rejects of each stream", func(a streamsAnswer) bool {
		return len(a.Streams) == 2 && a.Streams[0].Rejects == 1 && a.Streams[1].Rejects == 1
	})
}

// A query that is started before NATS answers everything that needs none, says what to do about the rest, logs once that
// it waits, and connects later.
func TestQueryStartsWithoutNATS(t *testing.T) {
	t.Parallel()
	redis, nats := stack.Redis(t), stack.NATS(t)
	ingest := stack.Ingest(t, nats, redis)
	js := nats.JetStream()
	if _, err := js.Publish(t.Context(), "hits.a", nil); err != nil {
		t.Fatal(err)
	}
	first := stack.Query(t, redis)
	stack.EventuallyTotal(t, first.URL(), "a", "1h", 1)
	ingest.Stop()
	nats.Stop()
	query := stack.Query(t, redis, "NATS_URL="+nats.URL()) // it is ready
	if got := stack.TotalOf(t, query.URL(), "a", "1h"); got.Total != 1 {
		t.Errorf("%+v", got)
	}
	for _, resource := range []string{"/v1/streams", "/v1/rejects"} {
		status, body, err := stack.Do(http.MethodGet, query.URL()+resource, nil)
		if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(string(body), "NATS does not answer, and this needs it: start it") {
			t.Errorf("%s: %d %s %v", resource, status, body, err)
		}
	}
	query.WaitForLog("waiting for NATS at " + strings.TrimPrefix(nats.URL(), "nats://"))
	nats.Start()
	query.WaitForLog("answering on NATS")
	for _, resource := range []string{"/v1/streams", "/v1/rejects"} {
		eventuallyAnswers(t, query.URL()+resource, "an answer of "+resource, func(map[string]any) bool { return true })
	}
	if n := strings.Count(query.Logs(), "waiting for NATS"); n != 1 {
		t.Errorf("it says %d times that it waits: %s", n, query.Logs())
	}
}

// Before any worker has counted, every question is told so, and what to start: Redis is there.
func TestQueryBeforeAnyWorker(t *testing.T) {
	t.Parallel()
	redis, nats := stack.Redis(t), stack.NATS(t)
	query := stack.Query(t, redis, "TALLYROLL_NAMESPACE=shop", stack.NoWait)
	const want = "no worker has counted in the namespace shop yet: start ingest with the same REDIS_URL and TALLYROLL_NAMESPACE"
	says := func(path, want string) {
		t.Helper()
		stack.Eventually(t, path+" to say "+want, func() (bool, string) {
			status, body, err := stack.Do(http.MethodGet, query.URL()+path, nil)
			return err == nil && status == http.StatusServiceUnavailable && strings.Contains(string(body), want), fmt.Sprint(status, string(body), err)
		})
	}
	for _, path := range []string{"/readyz", "/v1/total?key=a&window=1h", "/v1/top?window=1h", "/v1/counters", "/v1/live?key=a&window=1m", "/probe?key=a&window=1h"} {
		says(path, want)
	}
	redis.Stop()
	for _, path := range []string{"/readyz", "/v1/total?key=a&window=1h"} {
		says(path, "Redis")
		if _, body, err := stack.Do(http.MethodGet, query.URL()+path, nil); err != nil || strings.Contains(string(body), "no worker") {
			t.Errorf("%s while Redis is away: %s %v", path, body, err)
		}
	}
	redis.Start()
	stack.Ingest(t, nats, redis, "TALLYROLL_NAMESPACE=shop")
	query.WaitReady()
}

// With an empty NATS_URL query says what it lacks; while NATS is away it says so.
func TestStreamsNeedNATS(t *testing.T) {
	t.Parallel()
	redis, nats := stack.Redis(t), stack.NATS(t)
	stack.Ingest(t, nats, redis)
	without, with := stack.Query(t, redis), stack.Query(t, redis, "NATS_URL="+nats.URL())
	for _, resource := range []string{"/v1/streams", "/v1/rejects"} {
		status, body, err := stack.Do(http.MethodGet, without.URL()+resource, nil)
		if err != nil || status != http.StatusNotImplemented || !strings.Contains(string(body), "set NATS_URL") {
			t.Errorf("%s without NATS_URL: %d %s %v", resource, status, body, err)
		}
		eventuallyAnswers(t, with.URL()+resource, "an answer of "+resource, func(map[string]any) bool { return true })
	}
	nats.Stop()
	for _, resource := range []string{"/v1/streams", "/v1/rejects"} {
		stack.Eventually(t, resource+" to say that NATS is away", func() (bool, string) {
			status, body, err := stack.Do(http.MethodGet, with.URL()+resource, nil)
			return err == nil && status == http.StatusServiceUnavailable && strings.Contains(string(body), "NATS cannot answer"), fmt.Sprint(status, string(body), err)
		})
	}
	nats.Start()
	for _, resource := range []string{"/v1/streams", "/v1/rejects"} {
		eventuallyAnswers(t, with.URL()+resource, "an answer of "+resource+" again", func(map[string]any) bool { return true })
	}
}
