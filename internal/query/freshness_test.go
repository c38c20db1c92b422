package query

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/rejects"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// scraped is the samples of an answer in Prometheus' text format, by name and labels.
func scraped(t *testing.T, resp *http.Response) map[string]float64 {
	t.Helper()
	text := string(asking.ReadAll(t, resp))
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("status %d, type %s: %s", resp.StatusCode, resp.Header.Get("Content-Type"), text)
	}
	out := make(map[string]float64)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64)
		require.NoErrorf(t, err, "%s", line)
		out[line[:at]] = value
	}
	return out
}

// eventually scrapes until the gauges have these values, or are absent where the value is negative. What is
// found less than a second ago is told again.
func eventuallyScraped(t *testing.T, h http.Handler, want map[string]float64) {
	t.Helper()
	stack.Eventually(t, "the gauges", func() (bool, string) {
		got := scraped(t, asking.Ask(h, http.MethodGet, "/metrics", ""))
		for name, value := range want {
			is, there := got[name]
			if there != (value >= 0) || there && is != value {
				return false, fmt.Sprintf("%s is %v (%v), want %v", name, is, there, value)
			}
		}
		return true, ""
	})
}

const absent = -1

// Without any worker the gauges tell how old the answers are, by Redis's clock, also while Redis is away.
func TestFreshness(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	store := window.NewStore(redis.Client(), asking.Namespace)
	s := impatient(onRedis(t, redis.URL(), now))
	moment := now
	s.status.Now = func() time.Time { return moment }
	h := s.handler()
	eventuallyScraped(t, h, map[string]float64{"tallyroll_query_redis_up": 1, "tallyroll_as_of_age_seconds": absent})

	asking.Seed(t, redis.Client(), now, asking.Hits("a", now, 1))
	moment = now.Add(1500 * time.Millisecond)
	eventuallyScraped(t, h, map[string]float64{
		"tallyroll_query_redis_up":                                1,
		"tallyroll_as_of_age_seconds":                             1.5,
		`tallyroll_stream_as_of_age_seconds{stream="HITS"}`:       1.5,
		`tallyroll_stream_counted{stream="HITS"}`:                 1,
		`tallyroll_stream_owned{stream="HITS"}`:                   absent,
		`tallyroll_workers`:                                       absent,
		"tallyroll_query_redis_seconds_count":                     0, // a scrape is no answer
		`tallyroll_query_clock_difference_seconds{clock="redis"}`: 0,
	})

	// A new stream that nobody has counted holds the whole back, from when it was made.
	require.NoError(t, store.AddStreamSince(t.Context(), "HITS_NEW", now.Add(-time.Minute).UnixMilli()))
	eventuallyScraped(t, h, map[string]float64{
		"tallyroll_as_of_age_seconds":                           61.5,
		`tallyroll_stream_as_of_age_seconds{stream="HITS"}`:     1.5,
		`tallyroll_stream_as_of_age_seconds{stream="HITS_NEW"}`: 61.5,
		`tallyroll_stream_counted{stream="HITS_NEW"}`:           0,
	})
	gone := func() (bool, error) { return true, nil }
	if _, err := store.EndStream(t.Context(), "HITS_NEW", now.UnixMilli(), 0, gone); err != nil {
		t.Fatal(err)
	}
	eventuallyScraped(t, h, map[string]float64{
		"tallyroll_as_of_age_seconds": 1.5, `tallyroll_stream_as_of_age_seconds{stream="HITS_NEW"}`: absent,
	})

	redis.Stop()
	moment = now.Add(100 * time.Second)
	eventuallyScraped(t, h, map[string]float64{
		"tallyroll_query_redis_up": 0, "tallyroll_as_of_age_seconds": 100, `tallyroll_stream_as_of_age_seconds{stream="HITS"}`: 100,
	})
	redis.Start()
	eventuallyScraped(t, h, map[string]float64{"tallyroll_query_redis_up": 1, "tallyroll_as_of_age_seconds": 100})
	redis.Pause()
	eventuallyScraped(t, h, map[string]float64{"tallyroll_query_redis_up": 0, "tallyroll_as_of_age_seconds": 100})
	redis.Resume()

	eventuallyScraped(t, h, map[string]float64{"tallyroll_query_redis_up": 1})
	require.NoError(t, redis.Client().FlushAll(t.Context()).Err())
	eventuallyScraped(t, h, map[string]float64{"tallyroll_query_redis_up": 1, "tallyroll_as_of_age_seconds": absent})
}

func TestFreshnessWithNATS(t *testing.T) {
	t.Parallel()
	broker, redis, now := stack.NATSProcess(t), stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now, 1))
	js := broker.JetStream()
	makeStream(t, js, "HITS", "hits.>")
	makeStream(t, js, rejects.Stream, rejects.Subjects)
	for range 3 {
		publish(t, js, "hits.a", "")
	}
	publish(t, js, rejects.Subject(asking.Namespace, "HITS"), "x")
	id, _, err := window.NewReader(window.NewStore(redis.Client(), asking.Namespace)).Progress(t.Context())
	require.NoError(t, err)
	kv := beat(t, js, id, "T1", `{"name":"pod-0","holds":["HITS"]}`)
	s, h := withNATS(t, redis.URL(), broker, now)
	holdClock(s, now.Add(2*time.Second))
	eventuallyScraped(t, h, map[string]float64{
		`tallyroll_stream_owned{stream="HITS"}`: 1, `tallyroll_stream_lag_messages{stream="HITS"}`: 2, `tallyroll_stream_lag_seconds{stream="HITS"}`: 2,
		`tallyroll_stream_rejected_messages{stream="HITS"}`: 1, "tallyroll_workers": 1,
	})
	require.NoError(t, kv.Delete(t.Context(), id+".worker.T1"))
	eventuallyScraped(t, h, map[string]float64{`tallyroll_stream_owned{stream="HITS"}`: 0, "tallyroll_workers": 0})
	impatient(s)
	broker.Stop()
	eventuallyScraped(t, h, map[string]float64{
		`tallyroll_stream_owned{stream="HITS"}`: absent, "tallyroll_workers": absent, "tallyroll_as_of_age_seconds": 2,
	})
}
