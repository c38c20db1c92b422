package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/rejects"
	"tallyroll/internal/status"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// withNATS is a service that has a Redis and a NATS_URL, and has connected to both.
func withNATS(t *testing.T, redisURL string, broker stack.Endpoint, now time.Time) (*service, http.Handler) {
	t.Helper()
	s := onRedis(t, redisURL, now)
	holdClock(s, now)
	s.status.AsksNATS, s.status.Namespace = true, asking.Namespace
	onNATS(t, s, broker.URL())
	h := s.handler()
	stack.Eventually(t, "a connection to NATS", func() (bool, string) {
		resp := asking.Ask(h, http.MethodGet, "/v1/rejects", "")
		return resp.StatusCode == http.StatusOK, resp.Status
	})
	return s, h
}

// decoded is the JSON of an answer with status 200, which comes within a while.
func decoded[A any](t *testing.T, h http.Handler, target string, fine func(A) bool) (out A) {
	t.Helper()
	stack.Eventually(t, target, func() (bool, string) {
		resp := asking.Ask(h, http.MethodGet, target, "")
		data := asking.ReadAll(t, resp)
		out = *new(A)
		err := json.Unmarshal(data, &out)
		return resp.StatusCode == http.StatusOK && err == nil && fine(out), fmt.Sprintf("%d %s %v", resp.StatusCode, data, err)
	})
	return out
}

func makeStream(t *testing.T, js jetstream.JetStream, name, subject string) {
	t.Helper()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}})
	require.NoError(t, err)
}

func publish(t *testing.T, js jetstream.JetStream, subject, body string, headers ...string) {
	t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	_, err := js.PublishMsg(t.Context(), m)
	require.NoError(t, err)
}

// beat writes a worker's key into the fleet's bucket, as a worker does.
func beat(t *testing.T, js jetstream.JetStream, id, token, value string) jetstream.KeyValue {
	t.Helper()
	kv, err := js.CreateOrUpdateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "tallyroll_" + asking.Namespace, Storage: jetstream.MemoryStorage})
	if err == nil {
		_, err = kv.PutString(t.Context(), id+".worker."+token, value)
	}
	require.NoError(t, err)
	return kv
}

func TestStreams(t *testing.T) {
	t.Parallel()
	broker, redis, now := stack.NATS(t), stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now, 1)) // HITS is applied up to its first message
	store := window.NewStore(redis.Client(), asking.Namespace)
	id, _, err := window.NewReader(store).Progress(t.Context())
	require.NoError(t, err)
	created := now.Add(-time.Minute).UnixMilli()
	require.NoError(t, store.AddStreamSince(t.Context(), "HITS_NEW", created))
	js := broker.JetStream()
	makeStream(t, js, "HITS", "hits.>")
	makeStream(t, js, rejects.Stream, rejects.Subjects)
	for range 3 {
		publish(t, js, "hits.a", "")
	}
	publish(t, js, rejects.Subject(asking.Namespace, "HITS"), "x")
	publish(t, js, rejects.Subject(asking.Namespace, "HITS"), "y")
	beat(t, js, id, "T1", `{"name":"pod-0","started":"2026-11-21T10:00:00Z","status":"10.0.0.7:9090","holds":["HITS"]}`)
	beat(t, js, "another", "T2", `{"name":"of another namespace","holds":["HITS_NEW"]}`)
	beat(t, js, id, "T3", "not JSON")
	s, h := withNATS(t, redis.URL(), broker, now)
	holdClock(s, now.Add(2*time.Second)) // HITS was applied 2 s ago

	got := decoded(t, h, "/v1/streams", func(a status.StreamsAnswer) bool { return len(a.Streams) > 0 })
	want := []status.StreamState{
		{Stream: "HITS", Worker: "pod-0", Exists: true, Last: 3, Applied: 1, LagMessages: 2, LagSeconds: 2, AsOf: now, Rejects: 2},
		{Stream: "HITS_NEW", AsOf: answer.Time(created)},
	}
	if !slices.Equal(got.Streams, want) {
		t.Errorf("streams\n%+v\nwant\n%+v", got.Streams, want)
	}
	if len(got.Workers) != 1 || got.Workers[0].Worker != "pod-0" || got.Workers[0].Status != "10.0.0.7:9090" || !slices.Equal(got.Workers[0].Streams, []string{"HITS"}) {
		t.Errorf("workers %+v", got.Workers)
	}
	if want := now.Add(2 * time.Second); !got.AsOf.Equal(want) {
		t.Errorf("as_of %v, want %v", got.AsOf, want)
	}

	// Of a stream that has ended and is gone, nothing is left to tell.
	_, err = store.EndStream(t.Context(), "HITS_NEW", now.UnixMilli(), created, func() (bool, error) { return true, nil })
	require.NoError(t, err)
	decoded(t, h, "/v1/streams", func(a status.StreamsAnswer) bool { return len(a.Streams) == 1 })

	asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/streams?key=a", ""), http.StatusBadRequest)
}

func TestStreamsWithoutNATS(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	h := s.handler()
	for _, target := range []string{"/v1/streams", "/v1/rejects"} {
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, target, ""), http.StatusNotImplemented); !strings.Contains(p.Detail, "NATS_URL") {
			t.Errorf("%s: %s", target, p.Detail)
		}
	}
	s.status.AsksNATS = true // it has not connected yet
	for _, target := range []string{"/v1/streams", "/v1/rejects"} {
		resp := asking.Ask(h, http.MethodGet, target, "")
		if p := asking.Refused(t, resp, http.StatusServiceUnavailable); !strings.Contains(p.Detail, "NATS does not answer") || resp.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: %s, Retry-After %q", target, p.Detail, resp.Header.Get("Retry-After"))
		}
	}
}

// While NATS or Redis is away, the answer is a 503, and answers come again afterwards.
func TestStreamsWhileServersAreAway(t *testing.T) {
	t.Parallel()
	broker, redis, now := stack.NATSProcess(t), stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now, 1))
	makeStream(t, broker.JetStream(), "HITS", "hits.>")
	makeStream(t, broker.JetStream(), rejects.Stream, rejects.Subjects)
	publish(t, broker.JetStream(), rejects.Subject(asking.Namespace, "HITS"), "x")
	s, h := withNATS(t, redis.URL(), broker, now)
	impatient(s)
	both := []string{"/v1/streams", "/v1/rejects"}
	for _, c := range []struct {
		name, why  string
		targets    []string
		away, back func()
	}{
		{"NATS stopped", "NATS cannot answer", both, func() { broker.Stop() }, broker.Start},
		{"NATS hanging", "NATS cannot answer", both, broker.Pause, broker.Resume},
		{"Redis stopped", "Redis", both[:1], func() { redis.Stop() }, redis.Start},
		{"Redis hanging", "Redis", both[:1], redis.Pause, redis.Resume},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, target := range c.targets {
				decoded(t, h, target, func(map[string]any) bool { return true })
			}
			c.away()
			for _, target := range c.targets {
				stack.Eventually(t, target+" to be refused", func() (bool, string) {
					resp := asking.Ask(h, http.MethodGet, target, "")
					data := string(asking.ReadAll(t, resp))
					if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
						t.Errorf("%s: %d %s", target, resp.StatusCode, data)
					}
					return resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(data, c.why) && resp.Header.Get("Retry-After") == "1", data
				})
			}
			c.back()
			for _, target := range c.targets {
				decoded(t, h, target, func(map[string]any) bool { return true })
			}
		})
	}
}
