package fresh

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

// redis is what a watcher reads. Its clock is that of the test.
type redis struct {
	mu      sync.Mutex
	streams map[string]read.Progress
	behind  time.Duration // of as_of
	err     error
	reads   int
	hang    chan struct{} // a read returns when it is closed; nil: at once
}

// read notes what there is before it hangs, so that a read shows the moment at which it began.
func (r *redis) read(ctx context.Context) (read.Reach, error) {
	r.mu.Lock()
	r.reads++
	now := time.Now()
	out := read.Reach{
		Layout: window.Layout{Shards: 2, Tiers: window.Tiers{{Cell: time.Second, Window: time.Minute}}},
		Now:    now.UnixMilli(), AsOf: now.Add(-r.behind).UnixMilli(),
	}
	for _, name := range slices.Sorted(maps.Keys(r.streams)) {
		at := r.streams[name]
		at.Stream = name
		out.Streams = append(out.Streams, at)
	}
	err, hang := r.err, r.hang
	r.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return read.Reach{}, ctx.Err()
		}
	}
	return out, err
}

func (r *redis) count(stream string, seq uint64) {
	r.countShards(stream, seq, seq)
}

// countShards is count for each of the two shards.
func (r *redis) countShards(stream string, first, second uint64) {
	r.change(func() {
		r.streams[stream] = read.Progress{Shards: []uint64{first, second}, Latest: time.Now().UnixMilli()}
	})
}

func (r *redis) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *redis) countReads() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reads
}

// inBubble runs a watcher of a Redis that has counted HITS up to 10 in virtual time, while f runs.
func inBubble(t *testing.T, f func(t *testing.T, w *Watcher, r *redis)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &redis{streams: make(map[string]read.Progress)}
		r.count("HITS", 10)
		w := NewWatcher(r.read, "test", prometheus.NewRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = w.Run(ctx) })
		defer running.Wait()
		defer cancel()
		f(t, w, r)
	})
}

// ask begins to wait, as the parameters of a query string ask for it: name=value, separated by spaces.
func (w *Watcher) ask(t testing.TB, ctx context.Context, text string) (answered <-chan error) {
	t.Helper()
	var p struct {
		after, counters []string
		maxAge, wait    string
	}
	for pair := range strings.FieldsSeq(text) {
		switch name, value, _ := strings.Cut(pair, "="); name {
		case "after":
			p.after = append(p.after, value)
		case "max_age":
			p.maxAge = value
		case "wait":
			p.wait = value
		case "counter":
			p.counters = append(p.counters, value)
		}
	}
	out := make(chan error, 1)
	go func() {
		c, err := Names{"after", "max_age", "wait"}.Parse(p.after, p.maxAge, p.wait)
		c.Counters = p.counters
		if err == nil {
			err = web.InputProblem(w.Await(ctx, c), web.InQuery)
		}
		out <- err
	}()
	synctest.Wait()
	return out
}

func requireWaits(t testing.TB, answered <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-answered:
		t.Fatalf("it has been decided: %v", err)
	default:
	}
}

// requireProblem awaits a problem and returns it.
func requireProblem(t testing.TB, answered <-chan error, status int, detail string) *web.Problem {
	t.Helper()
	var p *web.Problem
	require.ErrorAs(t, <-answered, &p)
	require.Equal(t, status, p.Status, p.Detail)
	require.Contains(t, p.Detail, detail)
	return p
}

// A question goes on as soon as all shards have its messages, and no sooner.
func TestAQuestionWaitsForItsMessages(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *Watcher, r *redis) {
		require.NoError(t, <-w.ask(t, t.Context(), "after=HITS:10"))
		r.count("HITS_1", 5)
		both := w.ask(t, t.Context(), "after=HITS:9 after=HITS:12 after=HITS_1:6")
		time.Sleep(time.Second)
		requireWaits(t, both)
		r.count("HITS", 12)
		time.Sleep(checkEvery)
		requireWaits(t, both)
		began := time.Now()
		r.count("HITS_1", 7)
		require.NoError(t, <-both)
		require.LessOrEqual(t, time.Since(began), checkEvery)
		require.NoError(t, <-w.ask(t, t.Context(), ""), "without a condition")
	})
}

// A question about counters waits for their shards alone: another shard may be later.
func TestAQuestionWaitsForItsCountersShards(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *Watcher, r *redis) {
		var on [2]string
		for _, counter := range []string{"a", "b", "c", "d", "e"} {
			on[window.Layout{Shards: 2}.ShardOf(window.HashCounter([]byte(counter)))] = counter
		}
		r.countShards("HITS", 12, 10)
		require.NoError(t, <-w.ask(t, t.Context(), "after=HITS:12 counter="+on[0]))
		for _, counters := range []string{"counter=" + on[1], "counter=" + on[0] + " counter=" + on[1], "", strings.Repeat("counter="+on[0]+" ", maxCounters+1)} {
			waits := w.ask(t, t.Context(), "after=HITS:12 "+counters)
			time.Sleep(checkEvery)
			requireWaits(t, waits)
			requireProblem(t, waits, http.StatusServiceUnavailable, "up to 10 of 12")
		}
		r.countShards("HITS", 12, 12)
		require.NoError(t, <-w.ask(t, t.Context(), "after=HITS:12"))
	})
}

// Without the message in time, the problem says how far counting is, and when to ask again.
func TestAnAnswerThatLacksTheMessageIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *Watcher, _ *redis) {
		for wait, most := range map[string]time.Duration{"": 2 * time.Second, " wait=10s": 10 * time.Second, " wait=100ms": 100 * time.Millisecond, " wait=0s": 0} {
			time.Sleep(time.Minute)
			began := time.Now()
			p := requireProblem(t, w.ask(t, t.Context(), "after=HITS:18446744073709551615"+wait), http.StatusServiceUnavailable, "stream HITS is counted up to 10 of 18446744073709551615")
			require.Equal(t, web.NotYet.Type(), p.Type)
			require.Equal(t, "1", p.Headers().Get("Retry-After"))
			require.WithinRange(t, time.Now(), began.Add(most), began.Add(most+checkEvery))
		}
	})
}

// An as_of that is too old is waited for, too. What Redis's clock has advanced since a read counts.
func TestAQuestionWaitsForARecentAsOf(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *Watcher, r *redis) {
		r.behind = 980 * time.Millisecond
		require.NoError(t, <-w.ask(t, t.Context(), "max_age=1s"))
		time.Sleep(30 * time.Millisecond) // that read is still recent, but as_of is 1010 ms old by now
		r.change(func() { r.behind = 1500 * time.Millisecond })
		p := requireProblem(t, w.ask(t, t.Context(), "max_age=1s"), http.StatusServiceUnavailable, "1.5s ago: at most 1s")
		require.Equal(t, web.TooOld.Type(), p.Type)
		late := w.ask(t, t.Context(), "max_age=1s after=HITS:11")
		r.count("HITS", 11)
		time.Sleep(checkEvery)
		requireWaits(t, late)
		r.change(func() { r.behind = 0 })
		require.NoError(t, <-late)
	})
}

// Thousands that wait cost Redis no more than ten, and nobody costs it nothing.
func TestAllWhoWaitShareReads(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *Watcher, r *redis) {
		time.Sleep(time.Hour)
		require.Zero(t, r.countReads())
		var took []int
		for _, n := range []int{10, 10_000} {
			before := r.countReads()
			answered := make([]<-chan error, n)
			for i := range answered {
				answered[i] = w.ask(t, t.Context(), "after=HITS:11")
			}
			for _, a := range answered {
				requireProblem(t, a, http.StatusServiceUnavailable, "10 of 11")
			}
			took = append(took, r.countReads()-before)
			time.Sleep(time.Hour)
			require.Equal(t, took[len(took)-1], r.countReads()-before, "it reads for nobody")
		}
		require.Equal(t, took[0], took[1])
		require.LessOrEqual(t, took[0], int(defaultWait/checkEvery)+2)

		before := r.countReads()
		for range 1000 { // one after the other, and all hold
			require.NoError(t, <-w.ask(t, t.Context(), "after=HITS:10"))
		}
		require.LessOrEqual(t, r.countReads()-before, 1)
	})
}

// A read that began before a question came may show that the condition holds, but not that it does not.
func TestAnEarlierReadProvesNoLack(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *Watcher, r *redis) {
		hang := make(chan struct{})
		r.change(func() { r.hang = hang })
		first := w.ask(t, t.Context(), "after=HITS:11 wait=0s") // its read hangs
		r.change(func() { r.hang = nil })
		r.count("NEW", 1)
		held, unknown := w.ask(t, t.Context(), "after=HITS:10 wait=0s"), w.ask(t, t.Context(), "after=NEW:1 wait=0s")
		require.Equal(t, 1, r.countReads())
		close(hang)
		requireProblem(t, first, http.StatusServiceUnavailable, "10 of 11")
		require.NoError(t, <-held)
		require.Equal(t, 1, r.countReads())
		requireWaits(t, unknown)
		require.NoError(t, <-unknown, "the next read shows the new stream")
		require.Equal(t, 2, r.countReads())
	})
}

// What never will be counted is refused at once. Only who may list the streams gets their names.
func TestWhatIsNeverCountedIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *Watcher, r *redis) {
		r.change(func() { r.streams["OLD"] = read.Progress{Shards: []uint64{7, 7}, Ended: 1} })
		began := time.Now()
		p := requireProblem(t, w.ask(t, t.Context(), "after=HIT:1"), http.StatusBadRequest, `stream "HIT" is not counted here: counted are HITS, OLD`)
		require.Equal(t, "query.after", p.Errors[0].Location)
		bearer := access.With(t.Context(), new(access.Token))
		p = requireProblem(t, w.ask(t, bearer, "after=HIT:1"), http.StatusBadRequest, `stream "HIT" is not counted here`)
		require.NotContains(t, p.Detail, "HITS")
		requireProblem(t, w.ask(t, t.Context(), "after=OLD:8"), http.StatusBadRequest, "stream OLD has ended before its message 8 was counted")
		require.NoError(t, <-w.ask(t, t.Context(), "after=OLD:7"))
		require.Less(t, time.Since(began), defaultWait)
	})
}

// An error of Redis ends the waits that its read was for, as it ends every question.
func TestAnErrorOfRedisEndsTheWait(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *Watcher, r *redis) {
		waits := w.ask(t, t.Context(), "after=HITS:11")
		r.change(func() { r.err = errors.New("Redis is away") })
		require.EqualError(t, <-waits, "Redis is away")
		r.change(func() { r.err = nil })
		r.count("HITS", 11)
		require.NoError(t, <-w.ask(t, t.Context(), "after=HITS:11"))
	})
}

// The end of the service, or of the client, ends a wait at once, even while a read hangs.
func TestAWaitEndsWithTheServiceAndWithTheClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &redis{streams: make(map[string]read.Progress), hang: make(chan struct{})}
		r.count("HITS", 10)
		w := NewWatcher(r.read, "test", prometheus.NewRegistry())
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		gone, leave := context.WithCancel(t.Context())
		began := time.Now()
		stays, leaves := w.ask(t, t.Context(), "after=HITS:11"), w.ask(t, gone, "after=HITS:11")
		leave()
		require.Equal(t, web.ClientGone().Status, requireProblem(t, leaves, web.ClientGone().Status, "").Status)
		require.Equal(t, 1, w.count())
		stop()
		requireProblem(t, stays, http.StatusServiceUnavailable, "stopping")
		require.NoError(t, <-ended)
		requireProblem(t, w.ask(t, t.Context(), "after=HITS:11"), http.StatusServiceUnavailable, "stopping")
		require.Zero(t, time.Since(began))
	})
}

// Beyond the bound a question is refused at once, and no longer when others have left.
func TestTheNumberThatWaitsIsBounded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *Watcher, r *redis) {
		w.mu.Lock()
		for range maxWaiting {
			w.waiting[&waiter{until: time.Now().Add(maxWait), done: make(chan error, 1), Condition: Condition{after: []message{{"HITS", 11}}}}] = struct{}{}
		}
		w.mu.Unlock()
		p := requireProblem(t, w.ask(t, t.Context(), "after=HITS:11"), http.StatusServiceUnavailable, fmt.Sprint(maxWaiting, " requests wait"))
		require.Equal(t, "1", p.Headers().Get("Retry-After"))
		r.count("HITS", 11)
		w.joined.Give()
		time.Sleep(checkEvery)
		synctest.Wait()
		require.Zero(t, w.count())
		require.NoError(t, <-w.ask(t, t.Context(), "after=HITS:11"))
	})
}

// With WholeCells a question also waits until the cells in which its messages were stored are complete, and
// not those of later messages.
func TestAQuestionCanWaitForWholeCells(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *Watcher, r *redis) {
		r.change(func() { r.behind = 100 * time.Millisecond })
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1300 * time.Millisecond)))
		stored := time.Now()
		r.count("HITS", 11)
		answered := make(chan error, 1)
		go func() {
			c, err := Names{"Tallyroll-After", "", ""}.Parse([]string{"HITS:11"}, "", "")
			c.WholeCells = true
			answered <- errors.Join(err, w.Await(t.Context(), c))
		}()
		for range 3 {
			time.Sleep(200 * time.Millisecond)
			requireWaits(t, answered)
		}
		time.Sleep(150 * time.Millisecond)
		r.count("HITS", 12) // in the next cell
		requireWaits(t, answered)
		require.NoError(t, <-answered)
		end := stored.Truncate(time.Second).Add(time.Second + 100*time.Millisecond)
		require.WithinRange(t, time.Now(), end, end.Add(checkEvery))
	})
}

func TestConditionsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ after, maxAge, wait, want string }{
		{after: "HITS", want: `after: "HITS" is not STREAM:SEQUENCE: must be the name of a stream, a colon and a sequence from 1 on, such as HITS:812`},
		{after: ":1", want: "after: "},
		{after: "HITS:", want: "after: "},
		{after: "", want: "after: "},
		{after: "HITS:0", want: `after: "HITS:0" is not STREAM:SEQUENCE`},
		{after: "HITS:-1", want: "after: "},
		{after: "HITS:1.5", want: "after: "},
		{after: "HITS:18446744073709551616", want: "after: "},
		{after: "HITS:1", wait: "11s", want: `wait: "11s": must be a duration from 0s to 10s, such as 2s or 500ms`},
		{after: "HITS:1", wait: "-1s", want: "wait: "},
		{after: "HITS:1", wait: "1", want: "wait: "},
		{after: "HITS:1", maxAge: "0s", want: `max_age: "0s": must be a duration such as 2s, 500ms or 1m`},
		{after: "HITS:1", maxAge: "soon", want: "max_age: "},
	} {
		_, err := Names{"after", "max_age", "wait"}.Parse([]string{c.after}, c.maxAge, c.wait)
		var bad *web.InputError
		require.ErrorAs(t, err, &bad, "%+v", c)
		require.Contains(t, err.Error(), c.want)
	}
	_, err := Names{"after", "max_age", "wait"}.Parse(nil, "", "1s")
	require.EqualError(t, err, "wait: only with after or max_age")
	_, err = Names{After: "after"}.Parse(slices.Repeat([]string{"HITS:1"}, maxMessages+1), "", "")
	require.EqualError(t, err, "after: 101 messages in one request: at most 100 are allowed")
}
