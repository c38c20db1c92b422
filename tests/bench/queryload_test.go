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
	// askers is how many connections ask at a time.
	askers      = 8
	liveClients = 1000

	healthName, liveName            = "GET /healthz", "live, 1,000 clients of 100 totals of 1 h"
	totalName, manyName, seriesName = "one total of 24 h", "100 counters × 4 windows", "a series of 24 h"
	redisTotal, redisMany           = "Redis alone: the hashes of one total", "Redis alone: the hashes of 100 × 4"
)

// question is something to ask over and over.
type question struct {
	name   string
	beside string // the question that only reads the same hashes
	ask    func(ctx context.Context, i int) error
}

func topName(counters int) string {
	return fmt.Sprintf("the 20 largest of 1 h, of %s counters", boot.Thousands(float64(max(counters, densest))))
}

func questionNames(counters int) []string {
	return []string{healthName, totalName, manyName, seriesName, topName(counters), redisTotal, redisMany, liveName}
}

// fillQueried writes the hits of counters through the production writer: the
// first ones have some in every cell of every tier, the others in the last hour.
func (r *rig) fillQueried(t *testing.T, tiers window.Tiers, counters int) {
	t.Helper()
	ctx := t.Context()
	layout, store := window.Layout{Tiers: tiers, Shards: queriedShards}, window.NewStore(r.rdb, namespace)
	if err := store.EnsureLayout(ctx, layout); err != nil {
		t.Fatal(err)
	}
	if err := store.AddStream(ctx, "HITS"); err != nil {
		t.Fatal(err)
	}
	writers := make([]*window.Writer, layout.Shards)
	for shard := range writers {
		w, err := store.OpenWriter(ctx, layout, "HITS", shard)
		if err != nil {
			t.Fatal(err)
		}
		writers[shard] = w
	}
	batch, cells := window.NewBatch(layout), 0
	began, now := time.Now(), time.Now().UnixMilli()
	cursor := window.Cursor{Created: began.Add(-60 * day).UnixNano()}
	commit := func() {
		cursor.Seq++
		cursor.Stored, cursor.AsOf = began.UnixNano(), now
		for shard, w := range writers {
			if _, err := w.Commit(ctx, batch.Shard(shard), cursor); err != nil {
				t.Fatal(err)
			}
		}
		batch.Reset()
		cells = 0
	}
	add := func(i int, at, n int64) {
		name := []byte(counterName(i))
		batch.Add(name, window.HashCounter(name), at, now, n)
		if cells++; cells == 20_000 {
			commit()
		}
	}
	at := now
	for _, tier := range tiers {
		for ; at > now-tier.Window.Milliseconds(); at -= tier.Cell.Milliseconds() {
			for i := range densest { // in turn: a batch looks a counter's cells through one by one
				add(i, at, 100*tier.Cell.Milliseconds()/second)
			}
		}
	}
	for i := densest; i < counters; i++ {
		add(i, now-int64(i)%hour, 1+10_000/int64(i))
	}
	commit()
}

// questions are all that is asked at a rate. The connections are few and stay open.
func (r *rig) questions(t *testing.T, base string, counters int) []question {
	t.Helper()
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: askers, DisableCompression: true}}
	t.Cleanup(client.CloseIdleConnections)
	get := func(path string) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error { return askOnce(ctx, client, http.MethodGet, base+path, "") }
	}
	var all []string
	for i := range densest {
		all = append(all, fmt.Sprintf("%q", counterName(i)))
	}
	many := `{"keys":[` + strings.Join(all, ",") + `],"windows":["1m","1h","24h","30d"]}`
	one, hundred := r.hashes(t)
	return []question{
		{healthName, "", get("/healthz")},
		{totalName, redisTotal, func(ctx context.Context, i int) error {
			return askOnce(ctx, client, http.MethodGet, base+"/v1/total?window=24h&key="+counterName(i%densest), "")
		}},
		{manyName, redisMany, func(ctx context.Context, _ int) error {
			return askOnce(ctx, client, http.MethodPost, base+"/v1/total", many)
		}},
		{seriesName, redisTotal, func(ctx context.Context, i int) error {
			from := time.Now().Add(-day + time.Minute).UnixMilli() // within reach of the same tier when it arrives
			return askOnce(ctx, client, http.MethodGet, base+"/v1/series?step=15m&key="+counterName(i%densest)+"&from="+itoa(from), "")
		}},
		{topName(counters), "", get("/v1/top?window=1h&limit=20")},
		{redisTotal, "", func(ctx context.Context, i int) error { return r.readHashes(ctx, one[i%densest]) }},
		{redisMany, "", func(ctx context.Context, _ int) error { return r.readHashes(ctx, hundred) }},
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
func (r *rig) readHashes(ctx context.Context, keys []string) error {
	_, err := r.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
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
			if args := cmd.Args(); cmd.Name() == "hgetall" && strings.Contains(fmt.Sprint(args[1]), ":h:") {
				k.keys = append(k.keys, fmt.Sprint(args[1]))
			}
		}
		return next(ctx, cmds)
	}
}

// pressed is one round of a question.
type pressed struct {
	seconds            float64
	took               []time.Duration // of every request that was answered
	refused            int64
	queryCPU, redisCPU float64 // seconds
}

func (p pressed) query() float64 { return p.queryCPU }
func (p pressed) redis() float64 { return p.redisCPU }
func (p pressed) rate() float64  { return float64(len(p.took)) / p.seconds }

// press asks from all askers, each again when it has its answer.
func (r *rig) press(t *testing.T, pid int, length time.Duration, ask func(ctx context.Context, i int) error) (out pressed) {
	t.Helper()
	var refused atomic.Int64
	round := func(until func(asked int) bool) (took []time.Duration) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for asker := range askers {
			wg.Go(func() {
				var mine []time.Duration
				for n := 0; !until(n); n++ {
					began := time.Now()
					err := ask(t.Context(), asker+n*askers)
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
	query, store, began := cpuSeconds(t, pid), cpuSeconds(t, r.redis.PID()), time.Now()
	out.took = round(func(int) bool { return time.Since(began) >= length })
	out.seconds = time.Since(began).Seconds()
	out.queryCPU, out.redisCPU = cpuSeconds(t, pid)-query, cpuSeconds(t, r.redis.PID())-store
	if out.refused = refused.Load(); len(out.took) == 0 {
		t.Fatalf("nothing was answered, and %d requests were refused", out.refused)
	}
	return out
}

// heard is one round of the listeners.
type heard struct {
	events            int64
	seconds, queryCPU float64
}

func (h heard) rate() float64  { return float64(h.events) / h.seconds }
func (h heard) cores() float64 { return h.queryCPU / h.seconds }

// listen counts the events of so many clients once each has had its first one.
func (r *rig) listen(t *testing.T, q *stack.Service, clients int, length time.Duration) heard {
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
	cpu, before, began := cpuSeconds(t, q.PID()), events.Load(), time.Now()
	time.Sleep(length)
	h := heard{events: events.Load() - before, seconds: time.Since(began).Seconds(), queryCPU: cpuSeconds(t, q.PID()) - cpu}
	leave()
	ended.Wait()
	client.CloseIdleConnections()
	return h
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
