package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestTwentyRestartsLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	s := start(t)
	const hits, counters, restarts = 200_000, 50, 20
	published := make(chan string, 1)
	go func() {
		published <- s.publish(nil, "--count", fmt.Sprint(hits), "--counters", fmt.Sprint(counters), "--zipf", "0", "--rate", "50000", "--batch", "20")
	}()
	for range restarts {
		if code := s.ingest.Stop(); code != 0 {
			t.Fatalf("ingest ends with code %d", code)
		}
		s.ingest.Start()
	}
	if got := <-published; !strings.HasPrefix(got, fmt.Sprintf("published %d hits", hits)) {
		t.Fatalf("publish ends with %q", got)
	}
	eventuallySum(t, s, counters, hits)
}

// eventuallySum waits until the totals of the synthetic counters add up, and
// checks that they stay so.
func eventuallySum(t *testing.T, s *system, counters int, want int64) {
	t.Helper()
	keys := make([]string, counters)
	for i := range keys {
		keys[i] = fmt.Sprintf("api-%d", i+1)
	}
	sum := func() (n int64, err error) {
		answer, err := stack.FetchTotals(s.query.URL(), url.Values{"key": keys, "window": {"24h"}})
		for _, total := range answer.Totals {
			n += total.Total
		}
		return n, err
	}
	stack.Eventually(t, fmt.Sprintf("a sum of %d", want), func() (bool, string) {
		n, err := sum() // query may not have found Redis again
		return err == nil && n >= want, fmt.Sprint(n, err)
	})
	s.send("hits.after", "")
	stack.EventuallyTotal(t, s.query.URL(), "after", "24h", 1)
	if n, err := sum(); n != want || err != nil {
		t.Errorf("the counters add up to %d, %v; want %d", n, err, want)
	}
}

func TestRedisAwayForAWhile(t *testing.T) {
	t.Parallel()
	s := start(t)
	const hits, counters = 300_000, 50
	published := make(chan string, 1)
	go func() {
		published <- s.publish(nil, "--count", fmt.Sprint(hits), "--counters", fmt.Sprint(counters), "--zipf", "0", "--rate", "100000", "--batch", "20")
	}()
	stack.Eventually(t, "the first hits", func() (bool, string) {
		total, _, err := stack.FetchTotal(s.query.URL(), "api-1", "24h")
		return err == nil && total.Total > 0, fmt.Sprint(total, err)
	})
	s.redis.Stop()
	status, body, header := get(t, s.query.URL()+"/v1/total?key=api-1&window=24h")
	var problem struct {
		Status int
		Detail string
	}
	if err := json.Unmarshal(body, &problem); status != http.StatusServiceUnavailable || err != nil || problem.Detail == "" ||
		header.Get("Content-Type") != "application/problem+json" || header.Get("Retry-After") == "" {
		t.Errorf("without Redis: %d %v %s", status, header, body)
	}
	if got := <-published; !strings.HasPrefix(got, fmt.Sprintf("published %d hits", hits)) {
		t.Fatalf("publish ends with %q", got)
	}
	s.redis.Start()
	eventuallySum(t, s, counters, hits)
	t.Logf("ingest holds %d MiB", s.ingest.RSS()>>20)
}

func get(t *testing.T, url string) (status int, body []byte, header http.Header) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	body = make([]byte, 64<<10)
	n, _ := resp.Body.Read(body)
	return resp.StatusCode, body[:n], resp.Header
}

// While no worker counts, nobody knows what is stored meanwhile: no answer has an upper bound, and none is complete or
// certain, so that no alert on too few hits fires. Both are back with the worker.
func TestNothingIsExactAfterTheWorkerDied(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.send("hits.other", "")
	stack.EventuallyTotal(t, s.query.URL(), "other", "1h", 1)
	fetch := func(path string) string {
		status, body, err := stack.Do(http.MethodGet, s.query.URL()+path, nil)
		if err != nil || status != http.StatusOK {
			t.Fatalf("%s: status %d, %v: %s", path, status, err, body)
		}
		return string(body)
	}
	s.ingest.Kill()
	s.send("hits.a", "")
	stack.Eventually(t, "the upper bound to go", func() (bool, string) {
		text := fetch("/v1/total?key=a&window=1h")
		return strings.Contains(text, `"total":0,"lower":0,"upper":null,`), text
	})
	for path, want := range map[string][]string{
		"/v1/total?key=a&window=1h":                 {`"complete":false`},
		"/v1/total?prefix=a&window=1h":              {`"total":0,"lower":0,"upper":null,`, `"complete":false`},
		"/v1/top?window=1h":                         {`"floor":null`, `{"key":"other","total":1,"lower":1,"upper":null}`, `"complete":false`},
		"/v1/series?key=a":                          {`"complete":false`},
		"/v1/limit?key=a&window=1h&max=5":           {`"allowed":true,"certain":false`, `"complete":false`},
		"/probe?key=a&window=1h":                    {`tallyroll_window_hits_upper{key="a",window="1h"} +Inf`, `tallyroll_window_hits_complete{key="a",window="1h"} 0`},
		"/v1/limit?key=a&window=1h&max=5&fail=open": {`"allowed":true,"certain":false`, `"source":"local"`},
	} {
		text := fetch(path)
		for _, want := range want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %s\nwant %s", path, text, want)
			}
		}
	}
	s.ingest.Start()
	stack.Eventually(t, "the hit, with an upper bound", func() (bool, string) {
		text := fetch("/v1/total?key=a&window=1h")
		return strings.Contains(text, `"total":1,"lower":1,"upper":1,`), text
	})
}

// A worker makes its stream again if NATS has lost its store, and counts on. It does not if somebody deletes the stream.
func TestNATSComesBackEmpty(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.send("hits.a", "")
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 1)
	s.nats.Stop()
	s.nats.Empty()
	s.nats.Start()
	stack.Eventually(t, "the stream to be made again", func() (bool, string) {
		_, err := s.js.Publish(t.Context(), "hits.a", nil)
		return err == nil, fmt.Sprint(err)
	})
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 2)

	require.NoError(t, s.js.DeleteStream(t.Context(), "HITS"))
	looks, err := s.nats.Conn().SubscribeSync("$JS.API.STREAM.NAMES")
	require.NoError(t, err)
	for range 8 { // the worker looks once per second, and would make it again after five
		if _, err := looks.NextMsg(stack.Hung); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.js.Stream(t.Context(), "HITS"); err == nil {
		t.Error("a stream that was deleted is there again")
	}
}
