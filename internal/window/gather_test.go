package window

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
)

// road is a Redis whose trips last until they are let go. Run it in a bubble of synctest.
type road struct {
	gatherer
	departed chan *trip
	goOn     chan func() error
}

func newRoad() *road {
	r := &road{departed: make(chan *trip, 100), goOn: make(chan func() error)}
	r.read = func(ctx context.Context, t *trip) error {
		r.departed <- t
		select {
		case do := <-r.goOn:
			return do()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return r
}

func arrive() error { return nil }

// wants is what a question about these hashes wants.
func wants(hashes ...string) (out wanted) {
	out.cursors.add("cursor")
	out.hashes.addAll(hashes)
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
func (r *road) ask(ctx context.Context, want wanted) <-chan asked {
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
func (r *road) fill(ctx context.Context) (out []<-chan asked) {
	for i := range maxTrips {
		out = append(out, r.ask(ctx, wants(fmt.Sprintf("first %d", i))))
		<-r.departed
	}
	return out
}

// finish lets all trips arrive, and checks that nothing is left.
func (r *road) finish(t *testing.T) {
	t.Helper()
	for r.trips() > 0 {
		r.goOn <- arrive
		synctest.Wait()
	}
	if r.gathered() > 0 {
		t.Error("a trip has not departed")
	}
}

func (r *road) trips() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.underWay
}

// gathered is how many hashes the next trip reads.
func (g *gatherer) gathered() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gathering == nil {
		return 0
	}
	return len(g.gathering.hashes.keys)
}

func TestQuestionsThatComeTogetherShareATrip(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoad()
		first := r.fill(t.Context())
		later := []<-chan asked{r.ask(t.Context(), wants("a", "b")), r.ask(t.Context(), wants("b", "c")), r.ask(t.Context(), wants("a"))}
		if len(r.departed) > 0 {
			t.Fatal("a question has not waited for the trips under way")
		}
		r.goOn <- arrive
		trip := <-r.departed
		if got := fmt.Sprint(trip.cursors.keys, trip.hashes.keys); got != "[cursor] [a b c]" {
			t.Errorf("the trip reads %s; want each key once", got)
		}
		r.finish(t)
		for _, q := range append(first, later...) {
			if a := <-q; a.err != nil || a.panicked != nil {
				t.Errorf("%+v", a)
			}
		}
		if len(r.departed) > 0 {
			t.Error("there were more trips")
		}
	})
}

// A hanging Redis keeps nobody longer than he wants to wait, and whoever leaves takes nobody along.
func TestAQuestionLeavesWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoad()
		r.fill(t.Context())
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
		r.finish(t)
		if a := <-stays; a.err != nil {
			t.Errorf("%+v", a)
		}
	})
}

// If trips hang, those who come later do not hang with them.
func TestTripsThatHangHoldNobodyUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoad()
		r.fill(t.Context())
		early := r.ask(t.Context(), wants("a"))
		time.Sleep(gatherAtMost + time.Millisecond)
		late := r.ask(t.Context(), wants("b"))
		trip := <-r.departed
		if got := fmt.Sprint(trip.hashes.keys); got != "[a b]" {
			t.Errorf("the trip reads %s", got)
		}
		waits := r.ask(t.Context(), wants("c"))
		if len(r.departed) > 0 {
			t.Error("there is a trip for each question")
		}
		r.finish(t)
		for _, q := range []<-chan asked{early, late, waits} {
			if a := <-q; a.err != nil {
				t.Errorf("%+v", a)
			}
		}
	})
}

// A trip lasts as long as one of its questions can wait.
func TestATripEndsWithItsLastQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoad()
		r.fill(t.Context())
		for _, wait := range []time.Duration{time.Second, 3 * time.Second, 2 * time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			r.ask(ctx, wants("a"))
		}
		r.goOn <- arrive
		synctest.Wait()
		began := time.Now()
		for range maxTrips - 1 {
			r.goOn <- arrive
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
		r.goOn <- arrive
		time.Sleep(time.Hour)
		r.finish(t)
		if a := <-q; a.err != nil {
			t.Errorf("%+v", a)
		}
	})
}

// What goes wrong with a trip is told to all of its questions and to no others, and the next trip departs.
func TestATripThatFails(t *testing.T) {
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRoad()
				first := r.fill(t.Context())
				shared := []<-chan asked{r.ask(t.Context(), wants("a")), r.ask(t.Context(), wants("b"))}
				for range maxTrips { // all but the shared trip arrive
					r.goOn <- arrive
					synctest.Wait()
				}
				for range maxTrips - 1 {
					first = append(first, r.ask(t.Context(), wants("beside")))
				}
				next := r.ask(t.Context(), wants("c"))
				// The trips take turns: the shared one departed before those beside it, so it is told first.
				r.goOn <- c.do
				for _, q := range shared {
					a := <-q
					if !errors.Is(a.err, c.err) || (a.panicked != nil) != c.panicked {
						t.Errorf("%+v", a)
					}
				}
				r.finish(t)
				for _, q := range append(first, next) {
					if a := <-q; a.err != nil || a.panicked != nil {
						t.Errorf("another question: %+v", a)
					}
				}
			})
		})
	}
}

// A question that reads much neither waits nor lets others wait.
func TestLargeQuestionsTravelByThemselves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoad()
		r.fill(t.Context())
		r.ask(t.Context(), wants(manyHashes(maxShared+1)...))
		if len(r.departed) != 1 {
			t.Error("a large question waits")
		}
		r.ask(t.Context(), wants(manyHashes(maxShared-1)...))
		r.ask(t.Context(), wants("x"))
		if len(r.departed) != 1 || r.gathered() != maxShared {
			t.Errorf("%d have departed, and the next trip reads %d hashes", len(r.departed), r.gathered())
		}
		r.ask(t.Context(), wants("y"))
		if len(r.departed) != 2 || r.gathered() != maxShared {
			t.Errorf("%d have departed, and the next trip reads %d hashes", len(r.departed), r.gathered())
		}
		r.goOn <- arrive
		r.goOn <- arrive
		r.finish(t)
	})
}

// Whatever is asked at the same time, each question finds its own keys in its trip.
func TestEveryQuestionFindsItsKeys(t *testing.T) {
	t.Parallel()
	var trips, questions int
	var mu sync.Mutex
	g := gatherer{read: func(ctx context.Context, t *trip) error {
		for _, key := range t.hashes.keys {
			cmd := redis.NewRawCmd(ctx, "hgetall", key)
			cmd.SetVal([]byte("of " + key))
			t.hashes.replies = append(t.hashes.replies, cmd)
		}
		mu.Lock()
		defer mu.Unlock()
		trips++
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
					if got := trip.hashes.reply(key); err != nil || got != (reply{key, "of " + key}) {
						t.Errorf("%s: %+v %v", key, got, err)
					}
				}
				mu.Lock()
				questions++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if g.gathered() > 0 {
		t.Error("a trip has not departed")
	}
	t.Logf("%d questions in %d trips", questions, trips)
}
