package status

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/rejects"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

func TestStreamsHaveTheirLagAndTheirWorkers(t *testing.T) {
	t.Parallel()
	js, redis, now := stack.NATS(t).JetStream(), stack.Redis(t), apitest.Now()
	apitest.Seed(t, redis.Client(), now, apitest.NewSample("a", now, 1)) // HITS is applied up to its first message
	store := schema.NewStore(redis.Client(), apitest.Namespace)
	stack.WatchClock(redis.Client()).Hold(&now)
	reader := read.NewReader(store)
	reader.Local = func() time.Time { return now }
	found, err := reader.Progress(t.Context())
	require.NoError(t, err)
	created := now.Add(-time.Minute).UnixMilli()
	require.NoError(t, store.AddStreamSince(t.Context(), "HITS_NEW", created))
	createStream(t, js, "HITS", "hits.>")
	createStream(t, js, rejects.Stream, rejects.Subjects)
	for range 3 {
		publish(t, js, "hits.a", "", nil)
	}
	reject(t, js, apitest.Namespace, "HITS", hit.BadKey, 1, "x")
	reject(t, js, apitest.Namespace, "HITS", hit.BadKey, 2, "y")
	publish(t, js, rejects.Subject(apitest.Namespace, "HITS"), "nobody's", nil)
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "tallyroll_" + apitest.Namespace})
	require.NoError(t, err)
	for key, value := range map[string]string{
		found.Id + ".worker.T1":  `{"name":"pod-0","started":"2026-11-21T10:00:00Z","status":"10.0.0.7:9090","holds":["HITS"]}`,
		"another" + ".worker.T2": `{"name":"of another namespace","holds":["HITS_NEW"]}`,
		found.Id + ".worker.T3":  "not JSON",
	} {
		_, err := kv.PutString(t.Context(), key, value)
		require.NoError(t, err)
	}
	s, h, registry := newStatus(t, reader, stack.Hung, js)
	looked := now.Add(2 * time.Second) // HITS was applied 2 s ago
	s.Now = func() time.Time { return looked }

	started := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	require.Equal(t, StreamsAnswer{
		AsOf: looked.UTC(),
		Streams: []StreamState{
			{Stream: "HITS", Worker: "pod-0", Exists: true, Last: 3, Applied: 1, LagMessages: 2, LagSeconds: 2, AsOf: now, Rejects: 2},
			{Stream: "HITS_NEW", AsOf: answer.Time(created)},
		},
		Workers: []workerState{{Worker: "pod-0", Started: started, Status: "10.0.0.7:9090", Streams: []string{"HITS"}}},
	}, get[StreamsAnswer](t, h, "/v1/streams"))
	// A stream that nobody has counted holds all back, from when it was made.
	awaitGauges(t, registry, map[string]float64{
		"stream_owned HITS": 1, "stream_lag_messages HITS": 2, "stream_lag_seconds HITS": 2,
		"stream_rejected_messages HITS": 2, "stream_owned HITS_NEW": 0,
		"stream_counted HITS": 1, "stream_as_of_age_seconds HITS": 2, "stream_counted HITS_NEW": 0,
		"stream_as_of_age_seconds HITS_NEW": 62,
		"as_of_age_seconds":                 62, "workers": 1, "query_redis_up": 1,
	})

	// Of a stream that has ended and is gone, nothing is left to tell.
	_, err = store.EndStream(t.Context(), "HITS_NEW", now.UnixMilli(), created, func() (bool, error) { return true, nil })
	require.NoError(t, err)
	awaitAnswer(t, h, "/v1/streams", func(a StreamsAnswer) bool { return len(a.Streams) == 1 })
	require.NoError(t, kv.Delete(t.Context(), found.Id+".worker.T1"))
	awaitGauges(t, registry, map[string]float64{"as_of_age_seconds": 2, "stream_as_of_age_seconds HITS_NEW": absent,
		"stream_owned HITS": 0, "workers": 0})
	checkRefusals(t, h, map[string]string{"/v1/streams?key=a": "unknown parameter"})
	require.NoError(t, redis.Client().FlushAll(t.Context()).Err())
	awaitGauges(t, registry, map[string]float64{"query_redis_up": 1, "as_of_age_seconds": absent})
}

// absent is a value that no gauge has: a clock can be a second behind.
const absent = -1e9

// awaitGauges waits until gauges have these values, by their names without tallyroll_ and their labels. They
// can be a second old.
func awaitGauges(t *testing.T, registry *prometheus.Registry, want map[string]float64) {
	t.Helper()
	stack.Eventually(t, "the gauges", func() (bool, string) {
		families, err := registry.Gather()
		require.NoError(t, err)
		got := make(map[string]float64)
		for _, family := range families {
			for _, m := range family.Metric {
				name := strings.TrimPrefix(family.GetName(), "tallyroll_")
				for _, label := range m.Label {
					name += " " + label.GetValue()
				}
				got[name] = m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		for name, value := range want {
			if found, ok := got[name]; ok != (value != absent) || ok && found != value {
				return false, fmt.Sprintf("%s is %v (%v), want %v", name, found, ok, value)
			}
		}
		return true, ""
	})
}

var needNATS = []string{"/v1/streams", "/v1/rejects", "/v1/watch"}

func TestWhatNeedsNATSIsRefusedWithoutIt(t *testing.T) {
	t.Parallel()
	s, h, _ := newStatus(t, &apitest.FakeReader{}, stack.Hung, nil)
	for _, target := range needNATS {
		resp := apitest.Send(h, http.MethodGet, target, "")
		require.Contains(t, apitest.RequireProblem(t, resp, http.StatusServiceUnavailable).Detail, "NATS does not answer") // it has not connected yet
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
	}
	s.AsksNATS = false
	for _, target := range needNATS {
		require.Contains(t, apitest.RequireProblem(t, apitest.Send(h, http.MethodGet, target, ""), http.StatusNotImplemented).Detail, "NATS_URL")
	}
}

// While NATS is away, the answer is a 503. While Redis is away, it has what NATS has, how far Redis had the
// streams, and the reason; of a service that Redis has not answered yet, it is a 503. Answers come again
// afterwards.
func TestStreamsWhileServersAreAway(t *testing.T) {
	t.Parallel()
	broker, redis, now := stack.NATSProcess(t), stack.Redis(t), apitest.Now()
	apitest.Seed(t, redis.Client(), now, apitest.NewSample("a", now, 1))
	js := broker.JetStream()
	createStream(t, js, "HITS", "hits.>")
	createStream(t, js, rejects.Stream, rejects.Subjects)
	publish(t, js, rejects.Subject(apitest.Namespace, "HITS"), "x", nil)
	client := stack.ProgramClient(t, redis.URL())
	stack.WatchClock(client).Hold(&now)
	reader := read.NewReader(schema.NewStore(client, apitest.Namespace))
	reader.Local = func() time.Time { return now }
	s, h, registry := newStatus(t, reader, 500*time.Millisecond, js)
	var age atomic.Int64 // of the only stream, in seconds: it goes on while the servers are away
	s.Now = func() time.Time { return now.Add(time.Duration(age.Load()) * time.Second) }
	awaitGauges(t, registry, map[string]float64{"query_redis_up": 1, "as_of_age_seconds": 0,
		"query_redis_seconds": 0}) // a scrape is no answer
	withoutNATS := map[string]float64{"stream_owned HITS": absent, "workers": absent}
	withoutRedis := map[string]float64{"query_redis_up": 0}
	for _, c := range []struct {
		name, why  string
		targets    []string
		away, back func()
		gauges     map[string]float64
	}{
		{"NATS stopped", "NATS cannot answer", needNATS[:2], func() { broker.Stop() }, broker.Start, withoutNATS},
		{"NATS hanging", "NATS cannot answer", needNATS[:2], broker.Pause, broker.Resume, withoutNATS},
		{"Redis stopped", "Redis", nil, func() { redis.Stop() }, redis.Start, withoutRedis},
		{"Redis hanging", "Redis", nil, redis.Pause, redis.Resume, withoutRedis},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.away()
			c.gauges["as_of_age_seconds"] = float64(age.Add(100))
			awaitGauges(t, registry, c.gauges)
			for _, target := range c.targets {
				stack.Eventually(t, target+" to be refused", func() (bool, string) {
					resp := apitest.Send(h, http.MethodGet, target, "")
					if resp.StatusCode == http.StatusOK {
						return false, resp.Status
					}
					p := apitest.RequireProblem(t, resp, http.StatusServiceUnavailable)
					require.Contains(t, p.Detail, c.why)
					require.Equal(t, "1", resp.Header.Get("Retry-After"))
					return true, ""
				})
			}
			if c.targets == nil {
				found := awaitAnswer(t, h, "/v1/streams", func(a StreamsAnswer) bool { return strings.Contains(a.Redis, c.why) })
				require.Len(t, found.Streams, 1)
				one := found.Streams[0]
				require.Equal(t, []any{"HITS", true, uint64(1)}, []any{one.Stream, one.Exists, one.Applied})
				_, other, _ := newStatus(t, reader, 500*time.Millisecond, js)
				apitest.RequireProblem(t, apitest.Send(other, http.MethodGet, "/v1/streams", ""), http.StatusServiceUnavailable)
			}
			c.back()
			for _, target := range needNATS[:2] {
				get[any](t, h, target)
			}
			awaitAnswer(t, h, "/v1/streams", func(a StreamsAnswer) bool { return a.Redis == "" })
		})
	}
}

// The last stream that has ended says up to when answers are whole, if there is no other.
func TestAnswersAreAsOldAsTheStreamThatIsFurthestBehind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		streams []read.Progress
		want    int64
	}{
		{nil, 0},
		{[]read.Progress{{AsOf: 5}, {AsOf: 3}, {AsOf: 9}}, 3},
		{[]read.Progress{{AsOf: 1, Ended: 8}, {AsOf: 5}}, 5},
		{[]read.Progress{{AsOf: 5}, {AsOf: 1, Ended: 8}}, 5},
		{[]read.Progress{{AsOf: 5}, {AsOf: 0}}, 0},
		{[]read.Progress{{AsOf: 1, Ended: 8}, {AsOf: 1, Ended: 9}}, 9},
	} {
		require.Equal(t, c.want, oldest(c.streams), "%+v", c.streams)
	}
}
