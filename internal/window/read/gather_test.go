package read

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window/internal/cluster"
)

// slowRedis is a Redis whose trips last until they are let go. Run it in a bubble of synctest.
type slowRedis struct {
	gatherer
	departed chan *trip
	release  chan func() error
}

func newSlowRedis() *slowRedis {
	r := &slowRedis{departed: make(chan *trip, 100), release: make(chan func() error)}
	r.read = func(ctx context.Context, t *trip) error {
		r.departed <- t
		select {
		case do := <-r.release:
			return do()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return r
}

func succeed() error { return nil }

// wants is what a question about these hashes wants.
func wants(hashes ...string) (out keySets) {
	out.cursors.add("cursor")
	out.hashes[wholeHash].addAll(hashes)
	return out
}

func manyHashes(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

// asked is what became of a question.
type asked struct {
	trip     *trip
	err      error
	panicked any
}

// ask asks and returns when the question is on its way, or waits.
func (r *slowRedis) ask(ctx context.Context, want keySets) <-chan asked {
	out := make(chan asked, 1)
	go func() {
		var a asked
		defer func() { a.panicked = recover(); out <- a }()
		a.trip, a.err = r.gatherer.ask(ctx, want)
	}()
	synctest.Wait()
	return out
}

// fill lets as many trips depart as may be under way.
func (r *slowRedis) fill(ctx context.Context) (out []<-chan asked) {
	for i := range maxTrips {
		out = append(out, r.ask(ctx, wants(fmt.Sprintf("first %d", i))))
		<-r.departed
	}
	return out
}

// finish lets all trips succeed, and checks that nothing is left and that the questions are answered.
func (r *slowRedis) finish(t *testing.T, questions ...<-chan asked) {
	t.Helper()
	for r.trips() > 0 {
		r.release <- succeed
		synctest.Wait()
	}
	if r.gathered() > 0 {
		t.Error("a trip has not departed")
	}
	for _, q := range questions {
		if a := <-q; a.err != nil || a.panicked != nil {
			t.Errorf("%+v", a)
		}
	}
}

// withSlowRedis runs a test in a bubble, with as many trips on their way as there may be.
func withSlowRedis(t *testing.T, test func(t *testing.T, r *slowRedis, first []<-chan asked)) {
	synctest.Test(t, func(t *testing.T) {
		r := newSlowRedis()
		test(t, r, r.fill(t.Context()))
	})
}

func (r *slowRedis) trips() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.underWay
}

func TestQuestionsThatComeTogetherShareATrip(t *testing.T) {
	t.Parallel()
	withSlowRedis(t, func(t *testing.T, r *slowRedis, first []<-chan asked) {
		for _, hashes := range [][]string{{"a", "b"}, {"b", "c"}, {"a"}} {
			first = append(first, r.ask(t.Context(), wants(hashes...)))
		}
		if len(r.departed) > 0 {
			t.Fatal("a question has not waited for the trips under way")
		}
		r.release <- succeed
		trip := <-r.departed
		if got := fmt.Sprint(trip.cursors.keys, trip.hashes[wholeHash].keys); got != "[cursor] [a b c]" {
			t.Errorf("the trip reads %s; want each key once", got)
		}
		r.finish(t, first...)
		if len(r.departed) > 0 {
			t.Error("there were more trips")
		}
	})
}

// If Redis hangs, each caller waits no longer than it wants to, and one that leaves takes no other along.
func TestAQuestionLeavesWithItsContext(t *testing.T) {
	t.Parallel()
	withSlowRedis(t, func(t *testing.T, r *slowRedis, _ []<-chan asked) {
		impatient, cancel := context.WithCancel(t.Context())
		gone := r.ask(impatient, wants("a"))
		brief, cancelBrief := context.WithTimeout(t.Context(), time.Second)
		defer cancelBrief()
		long, cancelLong := context.WithTimeout(t.Context(), time.Minute)
		defer cancelLong()
		late, stays := r.ask(brief, wants("b")), r.ask(long, wants("c"))
		cancel()
		if a := <-gone; !errors.Is(a.err, context.Canceled) {
			t.Errorf("%+v", a)
		}
		began := time.Now()
		if a := <-late; !errors.Is(a.err, context.DeadlineExceeded) || time.Since(began) > time.Second {
			t.Errorf("%+v after %v", a, time.Since(began))
		}
		r.finish(t, stays)
	})
}

// If trips hang, those who come later do not hang with them.
func TestTripsThatHangHoldNoQuestionUp(t *testing.T) {
	t.Parallel()
	withSlowRedis(t, func(t *testing.T, r *slowRedis, _ []<-chan asked) {
		early := r.ask(t.Context(), wants("a"))
		time.Sleep(gatherAtMost + time.Millisecond)
		late := r.ask(t.Context(), wants("b"))
		trip := <-r.departed
		if got := fmt.Sprint(trip.hashes[wholeHash].keys); got != "[a b]" {
			t.Errorf("the trip reads %s", got)
		}
		waits := r.ask(t.Context(), wants("c"))
		if len(r.departed) > 0 {
			t.Error("there is a trip for each question")
		}
		r.finish(t, early, late, waits)
	})
}

// A trip lasts as long as one of its questions can wait.
func TestATripEndsWithItsLastQuestion(t *testing.T) {
	t.Parallel()
	withSlowRedis(t, func(t *testing.T, r *slowRedis, _ []<-chan asked) {
		for _, wait := range []time.Duration{time.Second, 3 * time.Second, 2 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			r.ask(ctx, wants("a"))
		}
		r.release <- succeed
		synctest.Wait()
		began := time.Now()
		for range maxTrips - 1 {
			r.release <- succeed
		}
		for r.trips() > 0 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if took := time.Since(began).Round(100 * time.Millisecond); took != 3*time.Second {
			t.Errorf("it lasted %v", took)
		}
		r.fill(t.Context())
		q := r.ask(t.Context(), wants("a")) // waits for ever
		r.release <- succeed
		time.Sleep(time.Hour)
		r.finish(t, q)
	})
}

// What goes wrong with a trip is returned to all of its questions and to no others, and the next trip
// departs.
func TestATripThatFailsFailsItsQuestionsAlone(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		do       func() error
		err      error
		panicked bool
	}{
		"an error":  {func() error { return broken }, broken, false},
		"a panic":   {func() error { panic("oh") }, nil, true},
		"a way out": {func() error { runtime.Goexit(); return nil }, errTripEnded, false},
	} {
		withSlowRedis(t, func(t *testing.T, r *slowRedis, others []<-chan asked) {
			shared := []<-chan asked{r.ask(t.Context(), wants("a")), r.ask(t.Context(), wants("b"))}
			for range maxTrips { // all but the shared trip succeed
				r.release <- succeed
				synctest.Wait()
			}
			for range maxTrips - 1 {
				others = append(others, r.ask(t.Context(), wants("beside")))
			}
			others = append(others, r.ask(t.Context(), wants("c")))
			// The trips take turns: the shared one departed before the others, so it is the first to go on.
			r.release <- c.do
			for _, q := range shared {
				if a := <-q; !errors.Is(a.err, c.err) || (a.panicked != nil) != c.panicked {
					t.Errorf("%s: %+v", name, a)
				}
			}
			r.finish(t, others...)
		})
	}
}

// A question that reads much neither waits nor lets others wait.
func TestLargeQuestionsTravelByThemselves(t *testing.T) {
	t.Parallel()
	withSlowRedis(t, func(t *testing.T, r *slowRedis, _ []<-chan asked) {
		check := func(departed, gathered int) {
			t.Helper()
			if len(r.departed) != departed || r.gathered() != gathered {
				t.Errorf("%d have departed, and the next trip reads %d hashes; want %d and %d",
					len(r.departed), r.gathered(), departed, gathered)
			}
		}
		r.ask(t.Context(), wants(manyHashes(maxShared+1)...))
		check(1, 0)
		r.ask(t.Context(), wants(manyHashes(maxShared-1)...))
		r.ask(t.Context(), wants("x"))
		check(1, maxShared)
		r.ask(t.Context(), wants("y"))
		check(2, maxShared)
		r.release <- succeed
		r.release <- succeed
		r.finish(t)
	})
}

// Whatever is asked at the same time, each question finds its own keys in its trip.
func TestEveryQuestionFindsItsKeys(t *testing.T) {
	t.Parallel()
	g := gatherer{read: func(ctx context.Context, t *trip) error {
		for _, key := range t.hashes[wholeHash].keys {
			cmd := redis.NewRawCmd(ctx, "hgetall", key)
			cmd.SetVal([]byte("of " + key))
			t.hashes[wholeHash].replies = append(t.hashes[wholeHash].replies, cmd)
		}
		return nil
	}}
	var group sync.WaitGroup
	for asker := range 16 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(asker)))
			for range 200 {
				var keys []string
				for range 1 + random.IntN(5) {
					keys = append(keys, fmt.Sprint(random.IntN(20)))
				}
				ctx, cancel := context.WithCancel(t.Context())
				if random.IntN(10) == 0 {
					go cancel()
				}
				trip, err := g.ask(ctx, wants(keys...))
				cancel()
				if errors.Is(err, context.Canceled) {
					continue
				}
				for _, key := range keys {
					if got := trip.hashes[wholeHash].reply(key); err != nil || got != (cluster.Reply{Key: key, Text: "of " + key}) {
						t.Errorf("%s: %+v %v", key, got, err)
					}
				}
			}
		})
	}
	group.Wait()
	if g.gathered() > 0 {
		t.Error("a trip has not departed")
	}
}
