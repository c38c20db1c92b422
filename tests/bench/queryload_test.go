package bench_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

const (
	queriedShards = 16 // SHARDS's default, as the tiers are those of TIERS
	// densest are the counters that are asked about: they have hits in every cell.
	densest = 100
	// askers is how many connections ask at a time, and manyAskers if a question is also asked by more.
	askers, manyAskers = 8, 64
	liveClients        = 1000

	healthName, liveName            = "GET /healthz", "live, 1,000 clients of 100 totals of 1 h"
	totalName, manyName, seriesName = "one total of 24 h", "100 counters × 4 windows", "a series of 24 h"
	redisTotal, redisMany           = "Redis alone: the hashes of one total", "Redis alone: the hashes of 100 × 4"
	by64                            = ", 64 connections"
)

// question is something to ask over and over.
type question struct {
	name   string
	beside string // the question that only reads the same hashes
	askers int    // connections that ask at a time
	ask    func(ctx context.Context, i int) error
}

func topName(counters int) string {
	return fmt.Sprintf("the 20 largest of 1 h, of %s counters", boot.Thousands(float64(max(counters, densest))))
}

// httpClient keeps so many connections open, and asks for answers as they are.
func httpClient(t *testing.T, connections int) *http.Client {
	t.Helper()
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// questions are all that is asked at a rate.
func (r *rig) questions(t *testing.T, base string, counters int) []question {
	t.Helper()
	client := httpClient(t, manyAskers)
	options := *r.rdb.Options()
	options.PoolSize = manyAskers
	bare := redis.NewClient(&options)
	t.Cleanup(func() { _ = bare.Close() })
	get := func(path string) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error { return askOnce(ctx, client, http.MethodGet, base+path, "") }
	}
	var all []string
	for i := range densest {
		all = append(all, fmt.Sprintf("%q", counterName(i)))
	}
	many := `{"keys":[` + strings.Join(all, ",") + `],"windows":["1m","1h","24h","30d"]}`
	one, hundred := r.hashes(t)
	total := func(ctx context.Context, i int) error {
		return askOnce(ctx, client, http.MethodGet, base+"/v1/total?window=24h&key="+counterName(i%densest), "")
	}
	bareTotal := func(ctx context.Context, i int) error { return readHashes(ctx, bare, one[i%densest]) }
	return []question{
		{healthName, "", askers, get("/healthz")},
		{totalName, redisTotal, askers, total},
		{totalName + by64, redisTotal + by64, manyAskers, total},
		{manyName, redisMany, askers, func(ctx context.Context, _ int) error {
			return askOnce(ctx, client, http.MethodPost, base+"/v1/total", many)
		}},
		{seriesName, redisTotal, askers, func(ctx context.Context, i int) error {
			from := time.Now().Add(-day + time.Minute).UnixMilli() // within reach of the same tier when it arrives
			return askOnce(ctx, client, http.MethodGet, base+"/v1/series?step=15m&key="+counterName(i%densest)+"&from="+itoa(from), "")
		}},
		{topName(counters), "", askers, get("/v1/top?window=1h&limit=20")},
		{redisTotal, "", askers, bareTotal},
		{redisTotal + by64, "", manyAskers, bareTotal},
		{redisMany, "", askers, func(ctx context.Context, _ int) error { return readHashes(ctx, bare, hundred) }},
	}
}

// errRefused is a 503: Redis had no time to answer within the two seconds that a
// request may wait, as on a machine that has too much to do.
var errRefused = errors.New("refused: 503")

// askOnce reads the whole answer, which must be a good one.
func askOnce(ctx context.Context, client *http.Client, method, url, body string) error {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusServiceUnavailable {
		return errRefused
	}
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s %s: %s %s", method, url, resp.Status, said)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// readHashes is what any reader of these keys must at least do.
func readHashes(ctx context.Context, c *redis.Client, keys []string) error {
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.HGetAll(ctx, key)
		}
		return nil
	})
	return err
}

// hashes are the keys that the answers to one total (by counter) and to many read,
// seen as the reader reads them.
func (r *rig) hashes(t *testing.T) (one [densest][]string, hundred []string) {
	t.Helper()
	seen := &readKeys{}
	client := redis.NewClient(r.rdb.Options())
	defer client.Close()
	client.AddHook(seen)
	reader := window.NewReader(window.NewStore(client, namespace))
	ask := func(questions ...window.Question) []string {
		seen.keys = nil
		if _, err := reader.Answer(t.Context(), questions); err != nil {
			t.Fatal(err)
		}
		return seen.keys
	}
	var all []window.Question
	for i := range densest {
		back := func(d time.Duration) window.Question {
			return window.Question{Counter: counterName(i), Span: window.Last(d)}
		}
		one[i] = ask(back(day))
		all = append(all, back(time.Minute), back(time.Hour), back(day), back(30*day))
	}
	return one, ask(all...)
}

// readKeys is a hook that keeps the keys of the hashes of counts.
type readKeys struct{ keys []string }

func (*readKeys) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*readKeys) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (k *readKeys) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if args := cmd.Args(); (cmd.Name() == "hgetall" || cmd.Name() == "hvals") && strings.Contains(fmt.Sprint(args[1]), ":h:") {
				k.keys = append(k.keys, fmt.Sprint(args[1]))
			}
		}
		return next(ctx, cmds)
	}
}

// answering is how a question was answered. The figures query and store are microseconds of processor per request: of the
// program that is asked, and of what it reads.
type answering struct {
	sample
	question question
	refused  int64
}

// press asks from all connections, each again when it has its answer. pid is the program that is asked, and store
// the processor time of what it reads.
func (a *answering) press(t *testing.T, pid int, store func() float64, length time.Duration) {
	t.Helper()
	var refused atomic.Int64
	round := func(until func(asked int) bool) (took []time.Duration) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for asker := range a.question.askers {
			wg.Go(func() {
				var mine []time.Duration
				for n := 0; !until(n); n++ {
					began := time.Now()
					err := a.question.ask(t.Context(), asker+n*a.question.askers)
					if errors.Is(err, errRefused) {
						refused.Add(1)
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					mine = append(mine, time.Since(began))
				}
				mu.Lock()
				took = append(took, mine...)
				mu.Unlock()
			})
		}
		wg.Wait()
		return took
	}
	round(func(asked int) bool { return asked == 1 }) // connects
	refused.Store(0)
	query, read, began := cpuSince(t, pid), store(), time.Now()
	took := round(func(int) bool { return time.Since(began) >= length })
	n := float64(len(took))
	a.add("rate", n/time.Since(began).Seconds())
	a.add("query", query()*1e6/n)
	a.add("store", (store()-read)*1e6/n)
	a.took, a.refused = append(a.took, took...), a.refused+refused.Load()
	if len(took) == 0 {
		t.Fatalf("nothing was answered, and %d requests were refused", refused.Load())
	}
}

// listen counts the events of so many clients once each has had its first one: their rate, and how many processors query
// needs for them.
func (r *rig) listen(t *testing.T, q *stack.Service, clients int, length time.Duration) (rate, cores float64) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	var events atomic.Int64
	var ready, ended sync.WaitGroup
	ready.Add(clients)
	for i := range clients {
		ended.Go(func() {
			first := sync.OnceFunc(ready.Done)
			defer first()
			params := url.Values{"key": {counterName(i % densest)}, "window": {"1h"}}
			err := listenOnce(ctx, client, q.URL()+"/v1/live?"+params.Encode(), func() { first(); events.Add(1) })
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
	client.CloseIdleConnections()
	return rate, cores
}

// listenOnce calls told for each total until the connection ends.
func listenOnce(ctx context.Context, client *http.Client, url string, told func()) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", resp.Status)
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if lines.Text() == "event: total" {
			told()
		}
	}
	return lines.Err()
}
