package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

func TestTwentyRestartsLoseAndDoubleNothing(t *testing.T) {
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
	sum := func() (n int64) {
		for _, total := range stack.PostTotal(t, s.query.URL(), keys, []string{"24h"}).Totals {
			n += total.Total
		}
		return n
	}
	stack.Eventually(t, 60*time.Second, fmt.Sprintf("a sum of %d", want), func() (bool, string) {
		n := sum()
		return n >= want, fmt.Sprint(n)
	})
	s.send("hits.after", "")
	stack.EventuallyTotal(t, 10*time.Second, s.query.URL(), "after", "24h", 1)
	if n := sum(); n != want {
		t.Errorf("the counters add up to %d; want %d", n, want)
	}
}

func TestRedisAwayForAWhile(t *testing.T) {
	s := start(t)
	const hits, counters = 300_000, 50
	published := make(chan string, 1)
	go func() {
		published <- s.publish(nil, "--count", fmt.Sprint(hits), "--counters", fmt.Sprint(counters), "--zipf", "0", "--rate", "100000", "--batch", "20")
	}()
	stack.Eventually(t, 20*time.Second, "the first hits", func() (bool, string) {
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
