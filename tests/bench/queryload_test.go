package bench_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

const (
	// densest are the counters that are asked about: they have hits in every cell.
	densest = 100
	// askers is how many connections ask at a time, and manyAskers if a question is also asked by more.
	askers, manyAskers = 8, 64
	liveClients        = 1000

	healthName, liveName  = "GET /healthz", "live, 1,000 clients of 100 totals of 1 h"
	totalName, monthName  = "one total of 24 h", "one total of 30 d"
	manyName, seriesName  = "100 counters × 4 windows", "a series of 24 h"
	redisTotal, redisMany = "Redis alone: the hashes of one total", "Redis alone: the hashes of 100 × 4"
	by64                  = ", 64 connections"

	jsonKind = "application/json"
)

// question is something to ask over and over, and how it was answered. The figures program and store are
// microseconds of processor per request: of the program that is asked, and of what it reads.
type question struct {
	sample
	beside string // the question that only reads the same hashes
	askers int    // connections that ask at a time
	ask    func(i int) error
	// The processor times of what is asked, and of what that reads.
	program, store clock

	Refused     int
	Base, Alone *sample // what it is compared with, and what only reads the same hashes
}

func topName(counters int) string {
	return fmt.Sprintf("the 20 largest of 1 h, of %s counters", human.Thousands(float64(max(counters, densest))))
}

// httpClient keeps n connections open, and asks for answers as they are.
func httpClient(t *testing.T, connections int) *http.Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: time.Minute, Transport: transport}
}

// totalsBody asks for the totals of n counters.
func totalsBody(first, counters int, windows ...string) string {
	return fmt.Sprintf(`{"keys":[%s],"windows":[%s]}`, quoted(counterNames(first, counters)), quoted(windows))
}

func counterNames(first, n int) (names []string) {
	for i := range n {
		names = append(names, counterName(first+i))
	}
	return names
}

func quoted(texts []string) string { return `"` + strings.Join(texts, `","`) + `"` }

// target is what questions are asked of.
type target struct {
	query   *stack.Service
	client  *http.Client
	bare    *redis.Client
	one     [densest][]string // the hashes of one total, by counter
	hundred []string          // those of many
}

// startTarget starts query over counters that are written already.
func (r *rig) startTarget(t *testing.T) *target {
	t.Helper()
	options := *r.rdb.Options()
	options.PoolSize = manyAskers
	a := &target{query: r.startQuery(t), client: httpClient(t, manyAskers), bare: redis.NewClient(&options)}
	t.Cleanup(func() { _ = a.bare.Close() })
	for i := range a.one {
		a.one[i] = r.hashes(t, i, 1, day)
	}
	a.hundred = r.hashes(t, 0, densest, time.Minute, time.Hour, day, 30*day)
	return a
}

func (a *target) get(path string) error { return getOnce(a.client, a.query.URL()+path) }

// readHashes is what any reader of these keys must at least do.
func (a *target) readHashes(keys []string) error {
	ctx := context.Background()
	_, err := a.bare.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.HGetAll(ctx, key)
		}
		return nil
	})
	return err
}

// questions are all that is asked at a rate, of what get returns when they are asked.
func questions(part string, counters int, get func() *target) []*question {
	total := func(i int) error { return get().get("/v1/total?window=24h&key=" + counterName(i%densest)) }
	month := func(i int) error { return get().get("/v1/total?window=30d&key=" + counterName(i%densest)) }
	bareTotal := func(i int) error { return get().readHashes(get().one[i%densest]) }
	bareMany := func(int) error { return get().readHashes(get().hundred) }
	body := totalsBody(0, densest, "1m", "1h", "24h", "30d")
	many := func(int) error {
		return postOnce(get().client, get().query.URL()+"/v1/total", jsonKind, body, io.Discard)
	}
	series := func(i int) error {
		from := time.Now().Add(-day + time.Minute).UnixMilli() // within reach of the same tier when it arrives
		return get().get("/v1/series?step=15m&key=" + counterName(i%densest) + "&from=" + itoa(from))
	}
	var all []*question
	add := func(name, beside string, askers int, ask func(i int) error) {
		all = append(all, &question{sample: sample{part: part, name: name}, beside: beside, askers: askers, ask: ask})
	}
	add(healthName, "", askers, func(int) error { return get().get("/healthz") })
	add(totalName, redisTotal, askers, total)
	add(totalName+by64, redisTotal+by64, manyAskers, total)
	add(monthName, "", askers, month)
	add(manyName, redisMany, askers, many)
	add(seriesName, redisTotal, askers, series)
	add(topName(counters), "", askers, func(int) error { return get().get("/v1/top?window=1h&limit=20") })
	add(redisTotal, "", askers, bareTotal)
	add(redisTotal+by64, "", manyAskers, bareTotal)
	add(redisMany, "", askers, bareMany)
	for _, q := range all {
		q.Base = &all[0].sample
		for _, other := range all {
			if other.name == q.beside {
				q.Alone = &other.sample
			}
		}
	}
	return all
}

// hashes are the keys of counts that answers about counters read, seen as the reader reads them.
func (r *rig) hashes(t *testing.T, first, counters int, windows ...time.Duration) []string {
	t.Helper()
	seen := &readKeys{}
	client := redis.NewClient(r.rdb.Options())
	defer client.Close()
	client.AddHook(seen)
	var questions []window.Question
	for _, name := range counterNames(first, counters) {
		for _, back := range windows {
			questions = append(questions, window.Question{Counter: name, Span: window.Last(back)})
		}
	}
	_, err := read.NewReader(schema.NewStore(client, namespace)).Answer(t.Context(), questions)
	require.NoError(t, err)
	return seen.keys
}

// readKeys is a hook that keeps the keys of the hashes of counts.
type readKeys struct{ keys []string }

func (*readKeys) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*readKeys) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (k *readKeys) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			args := cmd.Args()
			if (cmd.Name() == "hgetall" || cmd.Name() == "hvals") && strings.Contains(fmt.Sprint(args[1]), ":h:") {
				k.keys = append(k.keys, fmt.Sprint(args[1]))
			}
		}
		return next(ctx, cmds)
	}
}

// press asks from all connections, each again when it has its answer.
func (q *question) press(t *testing.T, length time.Duration) {
	t.Helper()
	ask := func(client, n int) error { return q.ask(client + n*q.askers) }
	press(t, q.askers, func(n int) bool { return n == 0 }, ask) // connects
	program, store, began := q.program.start(), q.store.start(), time.Now()
	took, refused := press(t, q.askers, during(length), ask)
	n := float64(len(took))
	q.add("rate", n/time.Since(began).Seconds())
	q.add("program", program()*1e6/n)
	q.add("store", store()*1e6/n)
	q.took, q.Refused = append(q.took, took...), q.Refused+refused
	if len(took) == 0 {
		t.Fatalf("nothing was answered, and %d requests were refused", refused)
	}
}

// listen counts the events of n clients of /v1/live once each has had its first one: their rate, and how many
// processors query needs for them.
func listen(t *testing.T, q *stack.Service, clients int, length time.Duration) (rate, cores float64) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer client.CloseIdleConnections()
	var events atomic.Int64
	var ready, ended sync.WaitGroup
	ready.Add(clients)
	for i := range clients {
		ended.Go(func() {
			first := sync.OnceFunc(ready.Done)
			defer first()
			url := q.URL() + "/v1/live?window=1h&key=" + counterName(i%densest)
			err := readEvents(ctx, client, url, func() {
				first()
				events.Add(1)
			})
			if ctx.Err() == nil {
				t.Errorf("a listener was left: %v", err)
			}
		})
	}
	ready.Wait()
	cpu, before, began := cpuSince(t, q.PID()), events.Load(), time.Now()
	time.Sleep(length)
	seconds := time.Since(began).Seconds()
	rate, cores = float64(events.Load()-before)/seconds, cpu()/seconds
	leave()
	ended.Wait()
	return rate, cores
}

// readEvents calls notify for each total until the connection ends.
func readEvents(ctx context.Context, client *http.Client, url string, notify func()) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if lines.Text() == "event: total" {
			notify()
		}
	}
	return errors.New(resp.Status)
}
