package faults_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"tallyroll/internal/limit"
	"tallyroll/internal/platform/human"
	"tallyroll/tests/stack"
)

// A linear test lets clients of two query processes take, repeat, settle and give back, while both processes
// and Redis are killed. Porcupine then looks for an order of all requests that agrees with each answer, and
// with when each was asked and answered. A request without an answer was done before the killed server is
// back, or never.

// linearRequest is one request of a client.
type linearRequest struct {
	kind  linearKind
	key   int
	id    string // of a take or a settlement; a give-back has none
	n     int64
	call  int64 // microseconds
	reply int64 // if there was none, when the servers were back
}

type linearKind string

const (
	linearTake   linearKind = "take"
	linearSettle linearKind = "settle"
	linearGive   linearKind = "give back"
)

// linearAnswer is what query answered. Its status is 0 if the request has no answer.
type linearAnswer struct {
	Status    int
	Allowed   bool
	Remaining int64
	Repeated  bool
	Source    string
	Settled   int64
	Over      int64
}

// linearLimit is the limit of a history.
type linearLimit struct {
	policy limit.Policy
	window time.Duration
	max    int64
	ttl    time.Duration
}

// ends tells that hits leave the window, and ids are forgotten, while the history lasts.
func (l *linearLimit) ends() bool { return l.window < time.Minute }

// linearState is what Redis must know of a key: its hits in the order in which they were counted, and its
// ids. No method changes it.
type linearState struct {
	hits []linearHits // that may be in the window
	ids  map[string]linearID
}

// linearHits were counted by one request. When is only known to be between two moments.
type linearHits struct{ n, call, reply int64 }

type linearID struct {
	base, extra int64 // what still counts of its hits; what settlements added
	call, reply int64 // of the request that it was last remembered by
}

func (s linearState) count() (n int64) {
	for _, h := range s.hits {
		n += h.n
	}
	return n
}

func (s linearState) with(id string, r linearID) linearState {
	s.ids = maps.Clone(s.ids)
	if s.ids == nil {
		s.ids = map[string]linearID{}
	}
	s.ids[id] = r
	return s
}

// add counts n hits, or takes some back if n is negative. If none leaves the window, one sum is enough.
func (l *linearLimit) add(s linearState, n int64, r *linearRequest) linearState {
	if l.ends() {
		s.hits = append(slices.Clip(s.hits), linearHits{n, r.call, r.reply})
	} else {
		s.hits = []linearHits{{n: max(0, s.count()+n)}}
	}
	return s
}

func (s linearState) equal(t linearState) bool {
	return slices.Equal(s.hits, t.hits) && maps.Equal(s.ids, t.ids)
}

// at returns the states that s can have become when a request came: hits leave the window, oldest first.
func (l *linearLimit) at(s linearState, r *linearRequest) []linearState {
	if !l.ends() {
		return []linearState{s}
	}
	const clocks = 2000 // Redis counts whole milliseconds
	window := l.window.Microseconds()
	for len(s.hits) > 0 && s.hits[0].reply+window+clocks < r.call {
		s.hits = s.hits[1:]
	}
	states := []linearState{s}
	for len(s.hits) > 0 && s.hits[0].call+window-clocks <= r.reply {
		s.hits = s.hits[1:]
		states = append(states, s)
	}
	return states
}

// remembers tells whether an id must be known, and whether it can be.
func (l *linearLimit) remembers(s linearState, r *linearRequest) (id linearID, must, can bool) {
	id, can = s.ids[r.id]
	if !can || !l.ends() {
		return id, can, can
	}
	const clocks = 2000
	ttl := l.ttl.Microseconds()
	return id, r.reply <= id.call+ttl-clocks, r.call <= id.reply+ttl+clocks
}

// step returns the states after a request with an answer, none if the answer is wrong.
func (l *linearLimit) step(s linearState, r *linearRequest, a *linearAnswer) (after []linearState) {
	for _, s := range l.at(s, r) {
		for _, next := range l.outcomes(s, r) {
			if a.Status == 0 || next.answer.agrees(a, r) {
				after = append(after, next.state)
			}
		}
	}
	if a.Status == 0 {
		after = append(after, s)
	}
	return after
}

type linearOutcome struct {
	state  linearState
	answer linearAnswer
}

func (want linearAnswer) agrees(got *linearAnswer, r *linearRequest) bool {
	switch {
	case want.Status != got.Status:
		return false
	case want.Status == http.StatusNotFound:
		return true
	case r.kind == linearSettle:
		return want.Settled == got.Settled && want.Over == got.Over && want.Remaining == got.Remaining
	}
	return want.Allowed == got.Allowed && want.Remaining == got.Remaining && want.Repeated == got.Repeated
}

// outcomes are what may be answered to a request, with the state after it.
func (l *linearLimit) outcomes(s linearState, r *linearRequest) (all []linearOutcome) {
	remaining := func(s linearState) int64 { return max(0, l.max-s.count()) }
	if r.kind == linearGive {
		s = l.add(s, -r.n, r)
		return []linearOutcome{{s, linearAnswer{Status: http.StatusOK, Allowed: true, Remaining: remaining(s)}}}
	}
	id, must, can := l.remembers(s, r)
	switch {
	case can && r.kind == linearTake:
		all = append(all, linearOutcome{s, linearAnswer{
			Status: http.StatusOK, Allowed: true, Repeated: true, Remaining: remaining(s),
		}})
	case can:
		base, before := min(id.base, r.n), id.base+id.extra
		next := l.add(s.with(r.id, linearID{base, r.n - base, r.call, r.reply}), r.n-before, r)
		all = append(all, linearOutcome{next, linearAnswer{
			Status: http.StatusOK, Settled: r.n, Remaining: remaining(next), Over: max(0, next.count()-l.max),
		}})
	}
	switch {
	case must:
	case r.kind == linearSettle:
		all = append(all, linearOutcome{s, linearAnswer{Status: http.StatusNotFound}})
	case s.count()+r.n <= l.max:
		next := l.add(s.with(r.id, linearID{r.n, 0, r.call, r.reply}), r.n, r)
		all = append(all, linearOutcome{next, linearAnswer{
			Status: http.StatusOK, Allowed: true, Remaining: remaining(next),
		}})
	default:
		all = append(all, linearOutcome{s, linearAnswer{Status: http.StatusTooManyRequests, Remaining: remaining(s)}})
	}
	return all
}

func (l *linearLimit) model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{linearState{}} },
		Step: func(state, input, output any) (after []any) {
			r, a := input.(linearRequest), output.(linearAnswer)
			for _, s := range l.step(state.(linearState), &r, &a) {
				after = append(after, s)
			}
			return after
		},
		Equal: func(a, b any) bool { return a.(linearState).equal(b.(linearState)) },
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%+v: %+v", input, output)
		},
	}
	return m.ToModel()
}

// linearClients work on one key after the other, all on the same, and record what they asked and heard.
type linearClients struct {
	t       *testing.T
	limit   linearLimit
	queries []*stack.Service
	perKey  int64 // requests
	pace    *rate.Limiter
	began   time.Time

	asked, unknown atomic.Int64
	left, forgot   atomic.Bool  // more than max was allowed in all; an id was counted again
	away           sync.RWMutex // locked while a server is killed and started
	mu             sync.Mutex
	history        []porcupine.Operation
	taken          map[int]int64   // hits of a key that were allowed
	counted        map[string]bool // ids that were allowed
}

const linearClientCount = 8

func (c *linearClients) now() int64 { return time.Since(c.began).Microseconds() }

// ask sends a request once, and records it. It returns the status, 0 if query did not decide.
func (c *linearClients) ask(client int, r linearRequest) int {
	path, body := "/v1/take", map[string]any{"limit": "l", "key": fmt.Sprint("k", r.key), "n": r.n}
	switch r.kind {
	case linearGive:
		path = "/v1/return"
	case linearSettle:
		path = "/v1/settle"
		fallthrough
	default:
		body["id"] = r.id
	}
	if r.kind == linearTake && c.limit.policy != limit.Stream {
		body["ttl"] = human.FormatDuration(c.limit.ttl)
	}
	_ = c.pace.Wait(c.t.Context())
	c.asked.Add(1)
	r.call = c.now()
	status, text, err := stack.Do(http.MethodPost, c.queries[client%len(c.queries)].URL()+path, body)
	var a linearAnswer
	switch {
	case err != nil || status == http.StatusServiceUnavailable || status == http.StatusBadGateway:
		c.unknown.Add(1)
		status = 0
		c.away.RLock()
		c.away.RUnlock()
	case status != http.StatusOK && status != http.StatusTooManyRequests && status != http.StatusNotFound:
		c.t.Errorf("%+v: %d %s", r, status, text)
	default:
		if err := json.Unmarshal(text, &a); err != nil {
			c.t.Errorf("%+v: %s: %v", r, text, err)
		}
	}
	if a.Status, r.reply = status, c.now(); a.Source == string(limit.SourceMemory) {
		return status // memory: Redis refused the same a moment ago, which promises nothing about now
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.Allowed && !a.Repeated && r.kind == linearTake {
		c.taken[r.key] += r.n
		c.left.Store(c.left.Load() || c.taken[r.key] > c.limit.max)
		c.forgot.Store(c.forgot.Load() || c.counted[r.id])
		c.counted[r.id] = true
	}
	c.history = append(c.history, porcupine.Operation{ClientId: client, Input: r, Call: r.call, Output: a, Return: r.reply})
	return status
}

// untilAnswered repeats a request with an id.
func (c *linearClients) untilAnswered(client int, r linearRequest) int {
	for {
		if status := c.ask(client, r); status != 0 {
			return status
		}
	}
}

// work asks until all requests of the history are asked.
func (c *linearClients) work(client int, requests int64) {
	random := rand.New(rand.NewPCG(uint64(client), uint64(requests))) //nolint:gosec // requests, not secrets
	var taken []linearRequest                                         // of the key
	for i := 0; ; i++ {
		asked := c.asked.Load()
		if asked >= requests && (!c.limit.ends() || c.left.Load() && c.forgot.Load()) {
			return
		}
		key := int(asked / c.perKey)
		if c.limit.ends() {
			key = int(time.Since(c.began) / (3 * c.limit.window))
		}
		if len(taken) > 0 && taken[0].key != key {
			taken = nil
		}
		gives := key%2 == 1 || c.limit.policy == limit.Stream // other keys are settled
		what := random.IntN(10)
		switch {
		case len(taken) == 0 || what < 5:
			r := linearRequest{kind: linearTake, key: key, id: fmt.Sprint(client, "-", i), n: 1 + random.Int64N(c.limit.max/5)}
			if c.untilAnswered(client, r) == http.StatusOK {
				taken = append(taken, r)
			}
		case what < 7:
			c.untilAnswered(client, taken[random.IntN(len(taken))])
		case gives && !c.limit.ends():
			c.ask(client, linearRequest{kind: linearGive, key: key, n: 1 + random.Int64N(c.limit.max/5)})
		case !gives && !c.limit.ends():
			r := taken[random.IntN(len(taken))]
			r.kind, r.n = linearSettle, random.Int64N(r.n*3/2+1)
			c.untilAnswered(client, r)
		}
	}
}

// linearHistory makes a history and returns it with the number of kills.
func linearHistory(t *testing.T, l linearLimit, requests, perKey int64, kills int, redisArgs ...string) *linearClients {
	t.Helper()
	file := filepath.Join(t.TempDir(), "limits.yml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil,
		"limits:\n  - {name: l, window: %s, max: %d, policy: %s, fail: closed}\n", human.FormatDuration(l.window), l.max, l.policy), 0o600))
	redis := stack.Redis(t, stack.RedisArgs(redisArgs...))
	start := func() *stack.Service {
		return stack.Query(t, redis, "QUERY_LIMITS_FILE="+file)
	}
	c := &linearClients{
		t: t, limit: l, perKey: perKey, pace: rate.NewLimiter(rate.Inf, 1), began: time.Now(), taken: map[int]int64{}, counted: map[string]bool{},
		queries: []*stack.Service{
			start(), start(),
		},
	}
	if l.ends() { // keys change with the time, and Porcupine's time grows fast with the requests for one
		c.pace.SetLimit(rate.Limit(float64(perKey) / (3 * l.window).Seconds()))
	}
	var working sync.WaitGroup
	for client := range linearClientCount {
		working.Go(func() { c.work(client, requests) })
	}
	for i := range kills {
		until := requests * int64(i+1) / int64(kills+1)
		stack.Eventually(t, "requests", func() (bool, string) { return c.asked.Load() >= until, fmt.Sprint(c.asked.Load()) })
		c.away.Lock()
		if i%2 == 0 {
			redis.Kill()
			redis.Start()
			rewriteFile(t, redis)
		} else {
			query := c.queries[i/2%len(c.queries)]
			query.Kill()
			query.Start()
		}
		for _, query := range c.queries {
			stack.Eventually(t, "decisions of Redis", func() (bool, string) {
				status, answer, err := stack.Do(http.MethodGet, query.URL()+"/v1/limit?limit=l&key=none", nil)
				return err == nil && status == http.StatusOK, fmt.Sprintf("%d %s %v", status, answer, err)
			})
		}
		c.away.Unlock()
	}
	working.Wait()
	return c
}

// rewriteFile does what a worker does after each start: Redis 7.0 would run a torn transaction at its next.
func rewriteFile(t *testing.T, redis *stack.RedisServer) {
	t.Helper()
	require.NoError(t, redis.Client().BgRewriteAOF(t.Context()).Err())
	stack.Eventually(t, "the append-only file to be rewritten", func() (bool, string) {
		info, err := redis.Client().Info(t.Context(), "persistence").Result()
		return err == nil && strings.Contains(info, "aof_rewrite_in_progress:0") &&
			strings.Contains(info, "aof_rewrite_scheduled:0"), info
	})
}

// check returns what Porcupine says of the keys' histories: Unknown only if it judges none of them within a
// minute each. On a busy machine many requests are under way at once, and may have any order.
func (c *linearClients) check() porcupine.CheckResult {
	model, byKey := c.limit.model(), map[int][]porcupine.Operation{}
	for _, o := range c.history {
		key := o.Input.(linearRequest).key
		byKey[key] = append(byKey[key], o)
	}
	out := porcupine.Unknown
	for key, history := range byKey {
		switch result := porcupine.CheckOperationsTimeout(model, history, time.Minute); result {
		case porcupine.Ok:
			out = porcupine.Ok
		default:
			c.t.Logf("key %d, %d requests: %s", key, len(history), result)
			if result == porcupine.Illegal {
				return result
			}
		}
	}
	return out
}

// TestLimitsAreLinearizable is the proof of what internal/limit promises about Redis's decisions.
func TestLimitsAreLinearizable(t *testing.T) {
	for _, l := range []linearLimit{
		{policy: limit.Cells, window: 24 * time.Hour, max: 50, ttl: time.Hour},
		{policy: limit.Log, window: 24 * time.Hour, max: 50, ttl: time.Hour},
		{policy: limit.Stream, window: 24 * time.Hour, max: 50, ttl: time.Hour},
		{policy: limit.Log, window: time.Second, max: 50, ttl: time.Second}, // hits leave it, and ids are forgotten
	} {
		// With everysec Redis answers before it writes if its disk is busy, and a killed one loses that: then ids
		// are counted again. With no it writes first, as with always, and leaves the rest to the system.
		for _, fsync := range []string{"always", "no"} {
			if fsync == "no" && !full() {
				continue
			}
			t.Run(fmt.Sprint(l.policy, " ", human.FormatDuration(l.window), " ", fsync), func(t *testing.T) {
				t.Parallel()
				requests, perKey := int64(rounds(1200, 4000, 20_000)), int64(400)
				if l.ends() { // when hits leave the window is uncertain, so there are more orders
					requests, perKey = requests/2, 150
				}
				c := linearHistory(t, l, requests, perKey, rounds(3, 6, 20), "--appendfsync", fsync)
				require.Equal(t, porcupine.Ok, c.check(), "there is no order of the requests that agrees with their answers")
				t.Logf("%d requests, %d without an answer", c.asked.Load(), c.unknown.Load())
			})
		}
	}
}

// A Redis that forgets what it answered is found out.
func TestForgottenTakesAreNotLinearizable(t *testing.T) {
	t.Parallel()
	l := linearLimit{policy: limit.Log, window: 24 * time.Hour, max: 1000, ttl: time.Hour}
	c := linearHistory(t, l, 300, 60, 1, "--appendonly", "no")
	require.Equal(t, porcupine.Illegal, c.check())
}
