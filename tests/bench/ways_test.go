package bench_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/limit"
	"tallyroll/tests/stack"
)

// way is one of the ways in which a service can have its limits decided.
type way struct {
	name   string
	pid    int // of the program that decides; 0: a library does it, in this process
	decide func(ctx context.Context, key string) error
}

// wayFigures are those of one way with one kind of traffic, per decision.
type wayFigures struct {
	sample
	way     way
	traffic wayTraffic
}

func (f *wayFigures) path() string { return "ways/" + f.traffic.name + "/" + f.way.name }

// wayClients ask at a time, each again when it has its answer.
const wayClients = 64

// wayTraffic is how many keys the decisions are about, in turn.
type wayTraffic struct {
	name string
	keys int64
}

var wayTraffics = []wayTraffic{{"1 key", 1}, {"1,000 keys", 1000}}

const (
	wayWindow = time.Second
	wayMost   = limit.MaxExactHits // more than can be decided in a window
	wayFile   = `limits:
- {name: cells, window: 1s, max: 100000}
- {name: log, window: 1s, max: 100000, policy: log}
- {name: stream, window: 1s, max: 100000, policy: stream}
- {name: share, window: 1s, max: 100000, share: {hits: 100, for: 1s}}
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
	query := stack.Query(t, r.redis, "QUERY_LIMITS_FILE="+file, stack.NoWait)
	rls, grpc := stack.RLS(t, r.redis, "RLS_LIMITS_FILE="+file)
	stack.Eventually(t, "query to take", func() (bool, string) {
		status, text, err := stack.Do(http.MethodGet, query.URL()+"/readyz/takes", nil)
		return err == nil && status == http.StatusOK, string(text)
	})
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: wayClients}}
	t.Cleanup(web.CloseIdleConnections)
	post := func(ctx context.Context, path, body string) error {
		text, err := answerTo(ctx, web, query.URL()+path, "application/json", strings.NewReader(body))
		if err == nil && !bytes.Contains(text, []byte(`"allowed":true`)) && !bytes.Contains(text, []byte(`"released":true`)) {
			err = fmt.Errorf("%w: %s", errNotAllowed, text)
		}
		return err
	}
	over := func(name string) func(context.Context, string) error {
		return func(ctx context.Context, key string) error {
			return post(ctx, "/v1/take", `{"limit":"`+name+`","key":"`+key+`"}`)
		}
	}
	place := func(ctx context.Context, key string) error {
		body := `{"limit":"places","key":"` + key + `","lease":"` + limit.NewLease() + `"}`
		return errors.Join(post(ctx, "/v1/take", body), post(ctx, "/v1/release", body))
	}
	client := r.limiterClient(t)
	rate := rateTake(client)
	return []way{
		{"go-redis: INCR, EXPIRE in a pipeline; no limit", 0, func(ctx context.Context, key string) error {
			_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
				p.Incr(ctx, "i:"+key)
				p.Expire(ctx, "i:"+key, wayWindow)
				return nil
			})
			return err
		}},
		{"go-redis/redis_rate (GCRA)", 0, func(ctx context.Context, key string) error {
			allowed, err := rate(ctx, key, wayWindow, wayMost)
			if err == nil && !allowed {
				err = errNotAllowed
			}
			return err
		}},
		{"query, `cells`", query.PID(), over("cells")},
		{"query, `log`", query.PID(), over("log")},
		{"query, `stream`", query.PID(), over("stream")},
		{"query, `mode: shadow`", query.PID(), over("shadow")},
		{"query, `share` of 100 hits for 1 s", query.PID(), over("share")},
		{"query, `concurrent`: take and release", query.PID(), place},
		{"rls, gRPC, `cells`", rls.PID(), envoyAsks(t, grpc)},
	}
}

func answerTo(ctx context.Context, client *http.Client, url, kind string, body io.Reader) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if status := resp.Trailer.Get("Grpc-Status"); err == nil && (resp.StatusCode != http.StatusOK || strings.Trim(status, "0") != "") {
		err = fmt.Errorf("status %d %s: %s", resp.StatusCode, status, text)
	}
	return text, err
}

// envoyAsks asks as Envoy does, over four connections, with net/http: so both programs are asked by the same client, and
// this module needs no gRPC.
func envoyAsks(t testing.TB, addr string) func(context.Context, string) error {
	var clients [4]*http.Client
	for i := range clients {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		clients[i] = &http.Client{Transport: transport}
		t.Cleanup(clients[i].CloseIdleConnections)
	}
	var asked atomic.Int64
	// field writes a field of a Protobuf message that has a length.
	field := func(number byte, value string) string { return string([]byte{number<<3 | 2, byte(len(value))}) + value }
	return func(ctx context.Context, key string) error {
		entry := field(1, "user") + field(2, key)
		message := field(1, "edge") + field(2, field(1, entry)) // RateLimitRequest
		frame := append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
		text, err := answerTo(ctx, clients[asked.Add(1)%int64(len(clients))],
			"http://"+addr+"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "application/grpc", bytes.NewReader(frame))
		if err == nil && (len(text) < 7 || text[5] != 1<<3 || text[6] != 1) { // overall_code: OK
			err = fmt.Errorf("%w: %q", errNotAllowed, text)
		}
		return err
	}
}

// measureWays lets the ways decide in turn, each round beginning with another one.
func measureWays(t *testing.T, r *rig, o options) (out []*wayFigures) {
	if len(chosen(o, func(traffic wayTraffic) string { return "ways/" + traffic.name }, wayTraffics...)) == 0 {
		return nil
	}
	all := r.ways(t)
	for _, traffic := range wayTraffics {
		var rows []*wayFigures
		for _, w := range all {
			rows = append(rows, &wayFigures{way: w, traffic: traffic})
		}
		rows = chosen(o, (*wayFigures).path, rows...)
		r.empty(t)
		inTurns(t, o, rows, (*wayFigures).path, func(t *testing.T, f *wayFigures, run int) {
			f.measure(t, r, o.seconds(2))
			fmt.Printf("%s run %d: %.0f/s, %.4f commands and %.4f round trips, µs: program %.1f, Redis %.1f, client %.1f\n", f.path(), run+1,
				f.last("rate"), f.last("commands"), f.last("trips"), f.last("program"), f.last("redis"), f.last("client"))
		})
		out = append(out, rows...)
	}
	return out
}

func (f *wayFigures) measure(t *testing.T, r *rig, length time.Duration) {
	t.Helper()
	press := func(length time.Duration) (decided int64, took time.Duration) {
		var asked, done atomic.Int64
		var clients sync.WaitGroup
		began := time.Now()
		for range wayClients {
			clients.Go(func() {
				for time.Since(began) < length {
					if err := f.way.decide(t.Context(), "user-"+itoa(asked.Add(1)%f.traffic.keys)); err != nil {
						t.Error(err)
						return
					}
					done.Add(1)
				}
			})
		}
		clients.Wait()
		if t.Failed() {
			t.FailNow()
		}
		return done.Load(), time.Since(began)
	}
	press(length / 8) // connects, and loads the scripts
	r.resetStats(t)
	trips := r.trips(t)
	program, server, client := func() float64 { return 0 }, cpuSince(t, r.redis.PID()), cpuSince(t, os.Getpid())
	if f.way.pid > 0 {
		program = cpuSince(t, f.way.pid)
	}
	n, took := press(length)
	per := func(figure string, value float64) { f.add(figure, value/float64(n)) }
	per("client", client()*1e6)
	per("redis", server()*1e6)
	per("program", program()*1e6)
	per("trips", float64(r.trips(t)-trips))
	per("commands", float64(r.commands(t, []string{"info"})))
	f.add("rate", float64(n)/took.Seconds())
}

// trips is how often Redis has read from a connection since its statistics were reset. Commands that are small and sent
// together are one read.
func (r *rig) trips(t testing.TB) int64 {
	t.Helper()
	info, err := r.rdb.Info(t.Context(), "stats").Result()
	require.NoError(t, err)
	return infoField(info, "total_reads_processed")
}

// wayRows are the rows of the table. Ratios are to the first way, with the same traffic: the median of those of the rounds,
// as the machine can be slower in one round than in another.
func wayRows(all []*wayFigures) (rows []string) {
	var first *wayFigures
	for _, f := range all {
		if first == nil || first.traffic != f.traffic {
			first = f
		}
		var ratios []float64
		for i, rate := range f.rounds["rate"] {
			ratios = append(ratios, rate/first.rounds["rate"][i])
		}
		program := "–"
		if f.way.pid > 0 {
			program = short(f.median("program"))
		}
		rows = append(rows, cellsOf(f.traffic.name, f.way.name, spread(f.rounds["rate"]), short(median(ratios)),
			short(f.median("commands")), short(f.median("trips")), program, short(f.median("redis")), short(f.median("client"))))
	}
	return rows
}

// Each way decides, and is counted as what it sends: a pipeline is one round trip, and a decision is one more.
func checkWays(t *testing.T, r *rig) {
	all := measureWays(t, r, options{runs: 1, scale: 0.05, only: everything})
	if len(all) != 2*9 || len(wayRows(all)) != len(all) {
		t.Fatalf("%d rows", len(all))
	}
	for _, f := range all {
		least, most := 0.98, 1.3 // what the programs ask by themselves is in it, and the run is short
		switch {
		case strings.Contains(f.way.name, "share"):
			least = 0.01 // none of 1,000 keys has been asked about often enough for a share
			if f.traffic == wayTraffics[0] {
				most = 0.1
			}
		case strings.Contains(f.way.name, "release"):
			least, most = 2*least, 2*most
		}
		if trips := f.last("trips"); trips < least || trips > most {
			t.Errorf("%s: %.3f round trips per decision, not %.2f to %.2f", f.path(), trips, least, most)
		}
	}
}

// 100,000 decisions about a key that is busy need 1,000 round trips if a share is 100 hits, and the few in which it grows.
func TestSharesNeedFewRoundTrips(t *testing.T) {
	r := newRig(t)
	set, err := limit.Parse([]byte("limits:\n- {name: share, window: 1m, max: 1000000, share: {hits: 100, for: 1m}}\n"))
	require.NoError(t, err)
	limiter := limit.New(r.limiterClient(t), namespace, time.Minute)
	take := []limit.Take{{Limit: set["share"], Key: "hot", Under: "hot", N: 1}}
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
	t.Logf("%s decisions in %v: %d round trips", boot.Thousands(decisions), took.Round(time.Millisecond), trips)
	if trips < decisions/100 || trips > decisions/100+50 {
		t.Errorf("%d round trips, not some %d", trips, decisions/100)
	}
}
