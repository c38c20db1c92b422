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
	stack.Eventually(t, 2*time.Minute, fmt.Sprintf("a sum of %d", want), func() (bool, string) {
		n, err := sum() // query may not have found Redis again
		return err == nil && n >= want, fmt.Sprint(n, err)
	})
	s.send("hits.after", "")
	stack.EventuallyTotal(t, soon, s.query.URL(), "after", "24h", 1)
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
	stack.Eventually(t, soon, "the first hits", func() (bool, string) {
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
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body = make([]byte, 64<<10)
	n, _ := resp.Body.Read(body)
	return resp.StatusCode, body[:n], resp.Header
}
