package window_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/tests/stack"
)

// Wherever the clocks of NATS, of Redis and of the asker stand, and wherever in an
// epoch that is, the truth about the range that an answer names is within its bounds:
// the hashes that Redis, by its own clock, has let go of are not asked for, and hits that
// are dated after Redis's now are not sold as certain.
func (r *rig) TestAnswersGoByTheClockOfRedis(t *testing.T) {
	defer r.clock.Ahead(0)
	epoch := 2 * time.Minute // of 1s/1m
	seq := uint64(0)
	for _, skew := range []time.Duration{40 * time.Second, 4 * time.Minute, -20 * time.Second, -4 * time.Minute, 0} { // Redis ahead of NATS
		for phase := time.Duration(0); phase < epoch; phase += 17 * time.Second {
			// By NATS it is so long after the beginning of an epoch.
			nats := time.Now().Truncate(epoch).Add(phase + 300*time.Millisecond)
			ahead := time.Until(nats.Add(skew))
			r.clock.Ahead(ahead)
			counter := fmt.Sprintf("c-%v-%v", skew, phase)
			batch := window.NewBatch(layout)
			var hits []counterHit
			for ago := 70 * time.Second; ago > 0; ago -= time.Second {
				h := counterHit{counter, nats.Add(-ago).UnixMilli(), nats.Add(-ago).UnixMilli(), 1}
				h.addTo(batch)
				hits = append(hits, h)
			}
			seq++
			cursor := cursorAt(seq, nats)
			cursor.Created = nats.Add(-time.Hour).UnixNano()
			if seq%2 == 0 { // the clock of NATS was set back after it had stored these hits
				earlier := nats.Add(-50 * time.Second)
				cursor.Stored, cursor.AsOf, cursor.Latest = earlier.UnixNano(), earlier.UnixMilli(), nats.UnixNano()
			}
			require.NoError(t, errOf(r.open("HITS").of(counter).Commit(t.Context(), batch.Shard(shardOf(counter)), cursor)))
			for _, asker := range []time.Duration{0, -20 * time.Second, -4 * time.Minute} { // ahead of NATS
				what := fmt.Sprintf("Redis %v ahead of NATS, asker %v, %v after an epoch's beginning", skew, asker, phase)
				reader, its := read.NewReader(r.store), time.Until(nats.Add(asker))
				reader.Local = func() time.Time { return time.Now().Add(its) }
				var questions []window.Question
				for _, span := range []window.Span{
					window.Last(10 * time.Second), window.Last(time.Minute), window.Last(2 * time.Minute), window.Last(30 * time.Minute),
					window.Between(nats.Add(-time.Minute).UnixMilli()-max(0, -skew).Milliseconds(), window.Now),
				} {
					questions = append(questions, window.Question{Counter: counter, Span: span})
				}
				require.NoError(t, errOf(reader.Look(t.Context())))
				found, err := reader.Answer(t.Context(), questions)
				require.NoError(t, err, what)
				for i, a := range found.Answers {
					truth := sumOf(hits, a.Range)[counter]
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
	s, last := r.open("HITS"), int64(0)
	hit := func() { // some milliseconds after the previous one
		var now time.Time
		stack.Eventually(t, "a later millisecond", func() (bool, string) {
			now = r.client.Time(t.Context()).Val()
			return now.UnixMilli() > last+5, now.String()
		})
		last = now.UnixMilli()
		s.commit("on-the-way", now, 1)
	}
	hit()
	var late atomic.Bool // a hit is to come before the next hashes are read
	r.addHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		reads := slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool {
			key, _ := cmd.Args()[len(cmd.Args())-1].(string)
			return (cmd.Name() == "hgetall" || cmd.Name() == "hvals") && strings.Contains(key, "}:h:")
		})
		if reads && late.Swap(false) {
			hit()
		}
		return send(cmds)
	})
	reader, span := read.NewReader(r.store), window.Last(time.Minute)
	for range 3 { // the first one finds the layout and the clock
		late.Store(true)
		found, err := reader.Answer(t.Context(), []window.Question{{Counter: "on-the-way", Span: span}})
		if err != nil || found.Answers[0].Lower != int64(s.seq) || found.Answers[0].Range.To < last || found.Now < last {
			t.Fatalf("%+v %v, and hit %d was stored at %d", found, err, s.seq, last)
		}
		late.Store(true)
		top, err := reader.Top(t.Context(), span, 1)
		if err != nil || len(top.Counters) != 1 || top.Counters[0].Lower != int64(s.seq) || top.Counters[0].Range.To < last {
			t.Fatalf("%+v %v, and hit %d was stored at %d", top, err, s.seq, last)
		}
	}
}

// countTrips returns how many requests were sent since the last call.
func (r *rig) countTrips() func() int64 {
	if _, cluster := r.client.(*redis.ClusterClient); cluster {
		r.t.Skip("nodes are asked side by side: the trips of one are counted")
	}
	var trips atomic.Int64
	r.addHook(r.t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		if name := cmds[0].Name(); name != "hello" && name != "client" { // by the client itself, on a new connection
			trips.Add(1)
		}
		return send(cmds)
	})
	return func() int64 { return trips.Swap(0) }
}

// An answer costs one round trip, and two when Redis's clock has been set.
func (r *rig) TestAnswerTakesOneRoundTrip(t *testing.T) {
	defer r.clock.Ahead(0)
	trips, reader := r.countTrips(), read.NewReader(r.store)
	question := window.Question{Counter: "a", Span: window.Last(time.Minute)}
	ask := func(want int64, why string) {
		t.Helper()
		require.NoError(t, errOf(reader.Answer(t.Context(), []window.Question{question})))
		require.Equal(t, want, trips(), why)
	}
	ask(2, "the first answer, which the layout is read for")
	ask(1, "another one")
	ask(1, "another one")
	for _, ahead := range []time.Duration{40 * time.Second, -4 * time.Minute} {
		r.clock.Ahead(ahead)
		ask(2, "Redis's clock was set")
		ask(1, "after that")
		if got, known := reader.ClockDifference(); !known || (got-ahead).Abs() > time.Minute {
			t.Errorf("Redis is said to be %v ahead, %v; want %v", got, known, ahead)
		}
	}
}
