package read_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

var layout = windowtest.Layout

type rig struct{ *windowtest.Rig }

// TestStore runs every test of a rig, one suite for every kind of Redis.
func TestStore(t *testing.T) {
	windowtest.Suite[rig](t, map[string]string{
		"TestUniquesOfEachStep": "its PFCOUNT of several keys counts some twice",
	})
}

func (r *rig) TestAnswersFollowTheNamespace(t *testing.T) {
	now := time.Now()
	var questions []window.Question // about all shards
	for i := range 20 {
		questions = append(questions, window.Question{Counter: fmt.Sprint(i), Span: window.Last(time.Minute)})
	}
	check := func(when string, asOf int64) {
		t.Helper()
		a, err := r.Answer(now, questions...)
		if err != nil || a.AsOf != asOf || a.Answers[0].Complete != (asOf > 0) {
			t.Errorf("%s: %+v, %v; want as_of %d", when, a, err, asOf)
		}
	}
	check("before any commit", 0)
	earliest := now.Add(-10 * time.Second)
	for shard, w := range r.Open("HITS").Writers {
		later := time.Duration((shard+2)%layout.Shards) * time.Second
		require.NoError(t, w.Write(t.Context(), windowtest.CursorAt(1, earliest.Add(later))))
	}
	check("as of the earliest of the shards", earliest.UnixMilli())
	require.NoError(t, r.Store.AddStream(t.Context(), "HITS_2"))
	check("with a new stream, which holds as_of back until it is counted", 0)
	require.NoError(t, r.FlushAll(t.Context()))
	require.ErrorIs(t, windowtest.ErrOf(r.Answer(now, questions...)), schema.ErrNoLayout, "after a flush")
	other := layout
	other.Shards = 1
	require.NoError(t, r.Store.EnsureLayout(t.Context(), other))
	check("with another layout", 0)
}

// The sum of all hits has no logs, so none are read or count against MaxCells. Those of other counters do.
func (r *rig) TestSumOfAllHitsReadsNoLogs(t *testing.T) {
	r.WithLogs(1024)
	now := time.Now()
	r.Open("HITS").Commit("rare", now.Add(-time.Second), 7)
	var logs atomic.Int64
	r.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		for _, cmd := range cmds {
			if strings.Contains(fmt.Sprint(cmd.Args()), "}:s:") {
				logs.Add(1)
			}
		}
		return send(cmds)
	})
	for _, span := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour} {
		total := window.Question{Counter: window.AllHits, Span: window.Last(span)}
		series := window.SeriesQuestion{Counter: window.AllHits, Span: total.Span, Step: span / 4}
		plan := windowtest.Must(r.Layout.Plan(total.Counter, windowtest.Must(total.Span.At(now.UnixMilli())), now.UnixMilli()))
		steps := windowtest.Must(r.Layout.PlanSeries(series, now.UnixMilli()))
		cells := func(p window.Plan) (n int64) {
			for h := range p.Hashes {
				if !h.Tier.Sparse {
					n += int64(r.Layout.Shards) * h.Tier.CellsPerEpoch()
				}
			}
			return n
		}
		check := func(cells int64, ask func() (int64, error)) {
			t.Helper()
			var much *window.TooMuchError
			r.Reader.MaxCells = cells - 1
			require.ErrorAs(t, windowtest.ErrOf(ask()), &much)
			require.Equal(t, cells, much.Count)
			r.Reader.MaxCells = cells
			n, err := ask()
			require.NoError(t, err)
			require.EqualValues(t, 7, n)
		}
		r.At(now, func() {
			check(cells(plan), func() (int64, error) {
				a, err := r.Reader.Answer(t.Context(), []window.Question{total})
				if err != nil {
					return 0, err
				}
				return a.Answers[0].Upper, nil
			})
			check(cells(steps.Plan), func() (n int64, err error) {
				a, err := r.Reader.Series(t.Context(), []window.SeriesQuestion{series})
				for _, s := range a {
					for _, step := range s.Counts {
						n += step
					}
				}
				return n, err
			})
		})
	}
	require.Zero(t, logs.Load())
	r.Reader.MaxCells = 0
	require.EqualValues(t, 7, r.Total("rare", time.Hour, now).Upper)
	require.Positive(t, logs.Load())
}

// Wherever the clocks of NATS, of Redis and of the asker stand, and wherever in an
// epoch that is, the truth about the range that an answer names is within its bounds:
// the hashes that Redis, by its own clock, has let go of are not asked for, and hits that
// are dated after Redis's now are not sold as certain.
func (r *rig) TestAnswersGoByTheClockOfRedis(t *testing.T) {
	r.WithLogs(1)
	defer r.Clock.Ahead(0)
	epoch := 2 * time.Minute // of 1s/1m
	seq := uint64(0)
	for _, skew := range []time.Duration{40 * time.Second, 4 * time.Minute, -20 * time.Second, -4 * time.Minute, 0} { // Redis ahead of NATS
		for phase := time.Duration(0); phase < epoch; phase += 17 * time.Second {
			// By NATS it is so long after the beginning of an epoch.
			nats := time.Now().Truncate(epoch).Add(phase + 300*time.Millisecond)
			ahead := time.Until(nats.Add(skew))
			r.Clock.Ahead(ahead)
			counter := fmt.Sprintf("c-%v-%v", skew, phase)
			batch := window.NewBatch(layout)
			var hits []windowtest.Hit
			for ago := 70 * time.Second; ago > 0; ago -= time.Second {
				at := nats.Add(-ago).UnixMilli()
				windowtest.AddHits(batch, counter, at, at, 1)
				hits = append(hits, windowtest.Hit{Counter: counter, At: at, N: 1})
			}
			seq++
			cursor := windowtest.CursorAt(seq, nats)
			cursor.Created = nats.Add(-time.Hour).UnixNano()
			if seq%2 == 0 { // the clock of NATS was set back after it had stored these hits
				earlier := nats.Add(-50 * time.Second)
				cursor.Stored, cursor.AsOf, cursor.Latest = earlier.UnixNano(), earlier.UnixMilli(), nats.UnixNano()
			}
			w, hitsOf := r.Open("HITS").Of(counter), batch.Shard(windowtest.ShardOf(counter))
			require.NoError(t, windowtest.ErrOf(w.Commit(t.Context(), hitsOf, cursor)))
			for _, asker := range []time.Duration{0, -20 * time.Second, -4 * time.Minute} { // ahead of NATS
				what := fmt.Sprintf("Redis %v ahead of NATS, asker %v, %v after an epoch's beginning", skew, asker, phase)
				reader, its := read.NewReader(r.Store), time.Until(nats.Add(asker))
				reader.Local = func() time.Time { return time.Now().Add(its) }
				var questions []window.Question
				for _, span := range []window.Span{
					window.Last(10 * time.Second), window.Last(time.Minute), window.Last(2 * time.Minute), window.Last(30 * time.Minute),
					window.Between(nats.Add(-time.Minute).UnixMilli()-max(0, -skew).Milliseconds(), window.Now),
				} {
					questions = append(questions, window.Question{Counter: counter, Span: span})
				}
				require.NoError(t, windowtest.ErrOf(reader.Look(t.Context())))
				found, err := reader.Answer(t.Context(), questions)
				require.NoError(t, err, what)
				for i, a := range found.Answers {
					truth := windowtest.SumOf(hits, a.Range)[counter]
					if a.Lower > truth || a.Upper < truth || a.Total < a.Lower || a.Total > a.Upper {
						t.Errorf("%s, question %d: %d hits, and %+v", what, i, truth, a.Total)
					}
				}
				if off := time.Until(time.UnixMilli(found.Now)) - ahead; off.Abs() > 30*time.Second { // a machine may be busy
					t.Errorf("%s: now is %v off Redis's clock", what, off)
				}
			}
		}
	}
}

// Hits that are stored while a question is on its way are in the answer: the range that
// it names must not end before them.
func (r *rig) TestAnswerEndsWhenItWasRead(t *testing.T) {
	r.WithLogs(1)
	s, last := r.Open("HITS"), int64(0)
	hit := func() { // some milliseconds after the previous one
		var now time.Time
		stack.Eventually(t, "a later millisecond", func() (bool, string) {
			now = r.Client.Time(t.Context()).Val()
			return now.UnixMilli() > last+5, now.String()
		})
		last = now.UnixMilli()
		s.Commit("on-the-way", now, 1)
	}
	hit()
	var late atomic.Bool // a hit is to come before the next hashes are read
	r.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		reads := slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool {
			key, _ := cmd.Args()[len(cmd.Args())-1].(string)
			return (cmd.Name() == "hgetall" || cmd.Name() == "hvals") && strings.Contains(key, "}:h:")
		})
		if reads && late.Swap(false) {
			hit()
		}
		return send(cmds)
	})
	reader, span := read.NewReader(r.Store), window.Last(time.Minute)
	for range 3 { // the first one finds the layout and the clock
		late.Store(true)
		found, err := reader.Answer(t.Context(), []window.Question{{Counter: "on-the-way", Span: span}})
		if err != nil || found.Answers[0].Lower != int64(s.Seq) || found.Answers[0].Range.To < last || found.Now < last {
			t.Fatalf("%+v %v, and hit %d was stored at %d", found, err, s.Seq, last)
		}
		late.Store(true)
		top, err := reader.Top(t.Context(), span, 1)
		if err != nil || len(top.Counters) != 1 || top.Counters[0].Lower != int64(s.Seq) || top.Counters[0].Range.To < last {
			t.Fatalf("%+v %v, and hit %d was stored at %d", top, err, s.Seq, last)
		}
	}
}

// An answer costs one round trip, and two when Redis's clock has been set.
func (r *rig) TestAnswerTakesOneRoundTrip(t *testing.T) {
	defer r.Clock.Ahead(0)
	trips, reader := r.CountTrips(t), read.NewReader(r.Store)
	question := window.Question{Counter: "a", Span: window.Last(time.Minute)}
	ask := func(want int64, why string) {
		t.Helper()
		require.NoError(t, windowtest.ErrOf(reader.Answer(t.Context(), []window.Question{question})))
		require.Equal(t, want, trips(), why)
	}
	ask(2, "the first answer, which the layout is read for")
	ask(1, "another one")
	ask(1, "another one")
	for _, ahead := range []time.Duration{40 * time.Second, -4 * time.Minute} {
		r.Clock.Ahead(ahead)
		ask(2, "Redis's clock was set")
		ask(1, "after that")
		if got, known := reader.ClockDifference(); !known || (got-ahead).Abs() > time.Minute {
			t.Errorf("Redis is said to be %v ahead, %v; want %v", got, known, ahead)
		}
	}
}

// Questions that share a trip have answers and errors of their own: a bad question, a key that another
// program has written to and an asker who leaves are no trouble to the others.
func TestQuestionsOfOneTripAreIndependent(t *testing.T) {
	t.Parallel()
	r := windowtest.NewRig(t, windowtest.Server(t))
	r.WithLogs(1)
	now, s := time.Now(), r.Open("HITS")
	for i, name := range []string{"good", "garbage", "other", "far"} {
		s.Commit(name, now, int64(i+1))
	}
	for _, key := range stack.Scan(t, r.Client, "test:*:h:*:garbage") {
		require.NoError(t, r.Client.HSet(t.Context(), key, "no field", "no value").Err())
	}
	for _, key := range stack.Scan(t, r.Client, "test:*:h:*:other") {
		require.NoError(t, r.Client.Del(t.Context(), key).Err())
		require.NoError(t, r.Client.Set(t.Context(), key, "a string", 0).Err())
	}
	reader := read.NewReader(r.Store)
	require.NoError(t, windowtest.ErrOf(reader.Look(t.Context())))
	gate := make(chan struct{}) // lets no trip pass before it is closed
	var trips atomic.Int64
	r.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		if cmds[0].Name() == "get" {
			trips.Add(1)
			<-gate
		}
		return send(cmds)
	})

	var group sync.WaitGroup
	ask := func(ctx context.Context, check func(window.Answers, error), questions ...window.Question) {
		group.Go(func() { check(reader.Answer(ctx, questions)) })
	}
	minute := func(name string) window.Question {
		return window.Question{Counter: name, Span: window.Last(time.Minute)}
	}
	has := func(want int64) func(window.Answers, error) {
		return func(found window.Answers, err error) {
			if err != nil || found.Answers[0].Upper != want || found.AsOf != now.UnixMilli() {
				t.Errorf("%+v %v; want %d", found, err, want)
			}
		}
	}
	foreign := func(found window.Answers, err error) {
		var bad *window.QuestionError
		var foreign *window.ForeignError
		if !errors.As(err, &bad) || bad.Index != 1 || !errors.As(err, &foreign) || !strings.Contains(foreign.Key, ":h:") {
			t.Errorf("%+v %v; want a foreign key of the second question", found, err)
		}
	}
	for range 2 { // trips that hang, so that the others gather
		ask(t.Context(), has(1), minute("good"))
	}
	stack.Eventually(t, "two trips", func() (bool, string) { return trips.Load() == 2, fmt.Sprint(trips.Load()) })
	impatient, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	ask(impatient, func(_ window.Answers, err error) { left <- err }, minute("good"))
	ask(t.Context(), has(1), minute("good"))
	ask(t.Context(), has(4), minute("far"))
	ask(t.Context(), foreign, minute("good"), minute("garbage"))
	ask(t.Context(), foreign, minute("far"), minute("other"))
	ask(t.Context(), func(_ window.Answers, err error) {
		var bad *window.QuestionError
		if !errors.As(err, &bad) {
			t.Errorf("a question that no tier answers: %v", err)
		}
	}, window.Question{Counter: "good", Span: window.Last(math.MaxInt64 / 2)})
	stack.Eventually(t, "four counters on one trip", func() (bool, string) {
		n := reader.Gathered()
		return n >= 4, fmt.Sprint(n)
	})
	leave()
	require.ErrorIs(t, <-left, context.Canceled, "although Redis hangs")
	close(gate)
	group.Wait()
	require.Less(t, trips.Load(), int64(2+6), "trips; on a busy machine those who come together may need two")
}

// How far a stream is counted is what each shard, and the least one, has wholly applied of this very stream.
func (r *rig) TestReachIsThatOfTheLeastShard(t *testing.T) {
	ctx, now := t.Context(), time.Now().Truncate(time.Millisecond)
	check := func(when string, want uint64) (read.Reach, read.Progress) {
		t.Helper()
		found, err := r.Reader.Progress(ctx)
		require.NoError(t, err)
		hits, listed := found.Stream("HITS")
		require.True(t, listed)
		require.Equal(t, want, slices.Min(hits.Shards), when)
		return found, hits
	}
	move := func(cursor window.Cursor, shards ...int) {
		t.Helper()
		for _, shard := range shards {
			w, err := commit.OpenWriter(ctx, r.Store, layout, "HITS", shard)
			require.NoError(t, err)
			_, err = w.Commit(ctx, window.NewBatch(layout).Shard(shard), cursor)
			require.NoError(t, err)
		}
	}
	all := make([]int, layout.Shards)
	for shard := range all {
		all[shard] = shard
	}
	created := now.Add(-time.Hour)
	at := func(seq uint64, stored time.Time) window.Cursor {
		out := windowtest.CursorAt(seq, stored)
		out.Created = created.UnixNano()
		return out
	}
	require.NoError(t, r.Store.AddStreamSince(ctx, "HITS", created.UnixMilli()))
	check("without cursors", 0)
	move(at(5, now), all[1:]...)
	check("with a shard that has not begun", 0)
	move(at(5, now), 0)
	found, hits := check("with all", 5)
	require.Equal(t, []int64{now.UnixMilli(), now.UnixMilli()}, []int64{found.AsOf, hits.Latest})
	require.Equal(t, layout, found.Layout)

	later := now.Add(time.Second)
	move(at(9, later), all[1:]...)
	found, hits = check("with a shard that is behind", 5)
	require.Equal(t, []uint64{5, 9}, hits.Shards[:2])
	require.Equal(t, []int64{now.UnixMilli(), later.UnixMilli()}, []int64{found.AsOf, hits.Latest})
	partial := at(5, now)
	partial.Ahead = window.Ahead{Seq: 9, Stored: later.UnixNano(), Done: 1, Parts: 2}
	move(partial, 0)
	check("with one that has applied a part", 5)
	move(at(9, later), 0)
	check("with all again", 9)
	require.Zero(t, hits.Ended)

	// A stream of the same name that is newer: its sequences are other messages.
	created = now.Add(-time.Minute)
	require.NoError(t, r.Store.AddStreamSince(ctx, "HITS", created.UnixMilli()))
	check("with cursors of the earlier stream", 0)
	require.NoError(t, r.Store.AddStream(ctx, "HITS"))
	check("with a creation that is unknown", 9)
	move(at(2, later), all[1:]...)
	_, hits = check("with one of the earlier stream", 0)
	require.Equal(t, []uint64{0, 2}, hits.Shards[:2])
	move(at(2, later), 0)
	check("with all of the newer stream", 2)
	_, err := r.Store.EndStream(ctx, "HITS", later.UnixMilli(), created.UnixMilli(), func() (bool, error) { return true, nil })
	require.NoError(t, err)
	_, hits = check("ended", 2)
	require.NotZero(t, hits.Ended)
	_, listed := found.Stream("OTHER")
	require.False(t, listed)
}
