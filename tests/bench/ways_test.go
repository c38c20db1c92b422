package bench_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/human"
	"tallyroll/tests/stack"
)

// way is one of the ways in which a service can have its limits decided, with one kind of traffic. Its
// figures are per decision.
type way struct {
	sample
	Traffic string
	keys    int64 // that the decisions are about, in turn
	pid     int   // of the program that decides; 0: a library does it, in this process
	decide  func(key string) error
	Base    *way // the first one, with the same traffic
}

// OfBase is the median of the rounds' ratios, as the machine can be slower in one round than in another.
func (w *way) OfBase() string {
	var ratios []float64
	for i, rate := range w.Base.rounds["rate"] {
		ratios = append(ratios, w.rounds["rate"][i]/rate)
	}
	return orNone(median(ratios), short)
}

// wayClients ask at a time, each again when it has its answer.
const wayClients = 64

const (
	wayWindow = time.Second
	wayMost   = limit.MaxExactHits // more than can be decided in a window
	wayFile   = `limits:
- {name: cells, window: 1s, max: 100000}
- {name: counted, window: 1s, max: 100000, count: {allowed: "usage.{limit}.{key}", refused: "refused.{limit}.{key}"}}
- {name: log, window: 1s, max: 100000, policy: log}
- {name: stream, window: 1s, max: 100000, policy: stream}
- {name: share, window: 20s, max: 2000000, share: {hits: 100, for: 1s}}
- {name: shadow, window: 1s, max: 100000, mode: shadow}
- {name: places, window: 30s, max: 10000, policy: concurrent}
- {name: envoy, window: 1s, max: 100000, envoy: {domain: edge, descriptor: [{key: user}]}}
`
)

var errNotAllowed = errors.New("a hit was not allowed")

// ways starts query and rls with the same limits, and returns all that is compared.
func (r *rig) ways(t testing.TB) []way {
	t.Helper()
	file := filepath.Join(t.TempDir(), "limits.yml")
	require.NoError(t, os.WriteFile(file, []byte(wayFile), 0o600))
	_, err := r.js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "DECIDED", Subjects: []string{"decided"}})
	require.NoError(t, err)
	query := stack.Query(t, r.redis, "QUERY_LIMITS_FILE="+file, "NATS_URL="+r.nats.URL(), "LIMITS_SUBJECT=decided", stack.NoWait)
	rls, grpc := stack.RLS(t, r.redis, "RLS_LIMITS_FILE="+file)
	stack.Eventually(t, "query to take", func() (bool, string) {
		err := getOnce(http.DefaultClient, query.URL()+"/readyz/takes")
		return err == nil, fmt.Sprint(err)
	})
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: wayClients}}
	t.Cleanup(web.CloseIdleConnections)
	ask := func(path, body string) error {
		var text bytes.Buffer
		err := postOnce(web, query.URL()+path, jsonKind, body, &text)
		s := text.String()
		if done := strings.Contains(s, `"allowed":true`) || strings.Contains(s, `"released":true`); err == nil && !done {
			err = fmt.Errorf("%w: %s", errNotAllowed, s)
		}
		return err
	}
	byHTTP := func(name, limit string) way {
		return way{sample: sample{name: name}, pid: query.PID(), decide: func(key string) error {
			return ask("/v1/take", `{"limit":"`+limit+`","key":"`+key+`"}`)
		}}
	}
	place := func(key string) error {
		body := `{"limit":"places","key":"` + key + `","lease":"` + limit.NewLease() + `"}`
		return errors.Join(ask("/v1/take", body), ask("/v1/release", body))
	}
	client, ctx := r.limiterClient(t), t.Context()
	rate := limiter{take: rateTake(client)}
	return []way{
		{sample: sample{name: "go-redis: INCR, EXPIRE in a pipeline; no limit"}, decide: func(key string) error {
			_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
				p.Incr(ctx, "i:"+key)
				p.Expire(ctx, "i:"+key, wayWindow)
				return nil
			})
			return err
		}},
		{sample: sample{name: "go-redis/redis_rate (GCRA)"}, decide: func(key string) error {
			return rate.mustAllow(ctx, key, wayWindow, wayMost)
		}},
		byHTTP("query, `cells`", "cells"),
		{sample: sample{name: "query, `cells` with an `id`"}, pid: query.PID(), decide: func(key string) error {
			return ask("/v1/take", `{"limit":"cells","key":"`+key+`","id":"`+limit.NewLease()+`","ttl":"10s"}`)
		}},
		byHTTP("query, `cells` with `count`", "counted"),
		byHTTP("query, `log`", "log"),
		byHTTP("query, `stream`", "stream"),
		byHTTP("query, `mode: shadow`", "shadow"),
		byHTTP("query, `share` of 100 hits for 1 s", "share"),
		{sample: sample{name: "query, `concurrent`: take and release"}, pid: query.PID(), decide: place},
		{sample: sample{name: "rls, gRPC, `cells`"}, pid: rls.PID(), decide: envoyAsks(t, grpc)},
	}
}

// envoyAsks asks as Envoy does, over four connections, with net/http: so both programs are asked by the same
// client, and this module needs no gRPC.
func envoyAsks(t testing.TB, addr string) func(string) error {
	var clients [4]*http.Client
	for i := range clients {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		clients[i] = &http.Client{Transport: transport}
		t.Cleanup(clients[i].CloseIdleConnections)
	}
	var asked atomic.Int64
	url := "http://" + addr + "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	// field writes a field of a Protobuf message that has a length.
	field := func(number byte, value string) string { return string([]byte{number<<3 | 2, byte(len(value))}) + value }
	return func(key string) error {
		entry := field(1, "user") + field(2, key)
		message := field(1, "edge") + field(2, field(1, entry)) // RateLimitRequest
		frame := string([]byte{0, 0, 0, 0, byte(len(message))}) + message
		var answer bytes.Buffer
		err := postOnce(clients[asked.Add(1)%int64(len(clients))], url, "application/grpc", frame, &answer)
		if text := answer.Bytes(); err == nil && (len(text) < 7 || text[5] != 1<<3 || text[6] != 1) { // overall_code: OK
			err = fmt.Errorf("%w: %q", errNotAllowed, text)
		}
		return err
	}
}

// measureWays lets the ways decide in turn, each round beginning with another one.
func measureWays(t *testing.T, r *rig, o options) (out []*way) {
	if !o.wants("ways/1 key") && !o.wants("ways/1,000 keys") {
		return nil
	}
	ways := r.ways(t)
	for _, traffic := range []struct {
		name string
		keys int64
	}{{"1 key", 1}, {"1,000 keys", 1000}} {
		var all []*way
		for _, w := range ways {
			w.part, w.Traffic, w.keys = "ways/"+traffic.name, traffic.name, traffic.keys
			all = append(all, &w)
			w.Base = all[0]
		}
		all = chosen(o, all...)
		r.empty(t)
		inTurns(t, o, all, func(t *testing.T, w *way, _ int) { w.measure(t, r, o.seconds(2)) })
		out = append(out, all...)
	}
	return out
}

func (w *way) measure(t *testing.T, r *rig, length time.Duration) {
	t.Helper()
	var asked atomic.Int64
	ask := func(int, int) error { return w.decide("user-" + itoa(asked.Add(1)%w.keys)) }
	press(t, wayClients, atLeast(1, during(length/8)), ask) // connects, and loads the scripts
	r.resetStats(t)
	trips := r.trips(t)
	clocks := map[string]clock{"client": cpuSince(t, os.Getpid()), "redis": r.redisCPU(t).start()}
	if w.pid > 0 {
		clocks["program"] = cpuSince(t, w.pid)
	}
	began := time.Now()
	// A few from each client, even if the machine is busy: what the programs ask by themselves is counted, too.
	took, _ := press(t, wayClients, atLeast(8, during(length)), ask)
	n := float64(len(took))
	w.add("rate", n/time.Since(began).Seconds())
	for figure, seconds := range clocks {
		w.add(figure, seconds()*1e6/n)
	}
	w.add("trips", float64(r.trips(t)-trips)/n)
	w.add("commands", float64(r.commands(t, []string{"info"}))/n)
}

// trips is how often Redis has read from a connection since its statistics were reset. Commands that are
// small and sent together are one read.
func (r *rig) trips(t testing.TB) int64 { return r.stat(t, "total_reads_processed") }

// Each way decides, and is counted as what it sends: a pipeline is one round trip, and a decision is one
// more, unless it shares the trip with others.
func checkWays(t *testing.T, r *rig) {
	o := options{runs: 1, scale: 0.05, only: everything}
	all := measureWays(t, r, o)
	if rows := strings.Count(view{"Ways": all}.tables(t, o), "\n| 1"); rows != 2*11 {
		t.Fatalf("%d rows", rows)
	}
	for _, w := range all {
		least, most := 0.01, 1.3 // what the programs ask by themselves is in it, and the run is short
		if w.pid == 0 {
			least = 0.98
		}
		switch {
		case strings.Contains(w.name, "share"):
			if w.keys == 1 { // none of 1,000 keys has been asked about often enough for a share
				most = 0.1
			}
		case strings.Contains(w.name, "release"):
			most *= 2
		}
		if trips := w.last("trips"); trips < least || trips > most {
			t.Errorf("%s: %.3f round trips per decision, not %.2f to %.2f", w.path(), trips, least, most)
		}
	}
}

// 100,000 decisions about a busy key need 1,000 round trips if a share is 100 hits, and the few in which it
// grows.
func TestSharesNeedFewRoundTrips(t *testing.T) {
	r := newRig(t)
	set, err := limitfile.Parse([]byte("limits:\n- {name: share, window: 1m, max: 1000000, share: {hits: 100, for: 3s}}\n"))
	require.NoError(t, err)
	limiter := limit.New(r.limiterClient(t), namespace, time.Minute)
	take := []limit.Take{{Limit: &set["share"].Limit, Caller: "hot", Key: "hot", N: 1}}
	const decisions = 100_000
	r.resetStats(t)
	before := r.trips(t)
	began := time.Now()
	for range decisions {
		answer, err := limiter.Take(t.Context(), take)
		if err != nil || !answer.Allowed {
			t.Fatalf("%+v %v", answer, err)
		}
	}
	took, trips := time.Since(began), r.trips(t)-before
	t.Logf("%s decisions in %v: %d round trips", human.Thousands(decisions), took.Round(time.Millisecond), trips)
	if trips < decisions/100 || trips > decisions/100+50 {
		t.Errorf("%d round trips, not some %d", trips, decisions/100)
	}
}
