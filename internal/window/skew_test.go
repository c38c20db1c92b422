package window_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// Wherever the clocks of NATS, of Redis and of the asker stand, and wherever in an
// epoch that is, the truth about the range that an answer names is within its bounds:
// the hashes that Redis, by its own clock, has let go of are not asked for, and hits that
// are dated after Redis's now are not sold as certain.
func answersGoByTheClockOfRedis(t *testing.T, r *rig) {
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
			batch, shard := window.NewBatch(layout), layout.ShardOf(window.HashCounter([]byte(counter)))
			var hits []int64
			for ago := 70 * time.Second; ago > 0; ago -= time.Second {
				at := nats.Add(-ago).UnixMilli()
				hits = append(hits, at)
				batch.Add([]byte(counter), window.HashCounter([]byte(counter)), at, at, 1)
			}
			seq++
			cursor := cursorAt(seq, nats)
			cursor.Created = nats.Add(-time.Hour).UnixNano()
			if seq%2 == 0 { // the clock of NATS was set back after it had stored these hits
				earlier := nats.Add(-50 * time.Second)
				cursor.Stored, cursor.AsOf, cursor.Latest = earlier.UnixNano(), earlier.UnixMilli(), nats.UnixNano()
			}
			require.NoError(t, errOf(r.writers()[shard].Commit(t.Context(), batch.Shard(shard), cursor)))
			for _, asker := range []time.Duration{0, -20 * time.Second, -4 * time.Minute} { // ahead of NATS
				reader, its := window.NewReader(r.store), time.Until(nats.Add(asker))
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
				require.NoErrorf(t, err, "Redis %v ahead, %v after an epoch's beginning", skew, phase)
				for i, a := range found.Answers {
					var truth int64
					for _, at := range hits {
						if at >= a.Range.From && at < a.Range.To {
							truth++
						}
					}
					if a.Lower > truth || a.Upper < truth || a.Total < a.Lower || a.Total > a.Upper {
						t.Errorf("Redis %v ahead of NATS, asker %v, %v after an epoch's beginning, question %d: %d hits, and %+v", skew, asker, phase, i, truth, a.Total)
					}
				}
				if off := time.Until(time.UnixMilli(found.Now)) - ahead; off.Abs() > 30*time.Second { // a machine may be busy
					t.Errorf("Redis %v ahead of NATS, asker %v: now is %v off Redis's clock", skew, asker, off)
				}
			}
		}
	}
}

// Hits that are stored while a question is on its way are in the answer: the range that
// it names must not end before them.
func anAnswerEndsWhenItWasRead(t *testing.T, r *rig) {
	counter := []byte("on-the-way")
	shard, seq := layout.ShardOf(window.HashCounter(counter)), uint64(0)
	writer, last := r.writers()[shard], int64(0)
	hit := func() { // some milliseconds after the one before
		now := r.client.Time(t.Context()).Val()
		stack.Eventually(t, "a later millisecond", func() (bool, string) {
			now = r.client.Time(t.Context()).Val()
			return now.UnixMilli() > last+5, now.String()
		})
		last = now.UnixMilli()
		seq++
		batch := window.NewBatch(layout)
		batch.Add(counter, window.HashCounter(counter), last, last, 1)
		require.NoError(t, errOf(writer.Commit(t.Context(), batch.Shard(shard), cursorAt(seq, now))))
	}
	hit()
	reader, late := window.NewReader(r.store), &beforeHashes{do: hit}
	r.addHook(late)
	span := window.Last(time.Minute)
	for range 3 { // the first one finds the layout and the clock
		late.armed.Store(true)
		found, err := reader.Answer(t.Context(), []window.Question{{Counter: string(counter), Span: span}})
		if err != nil || found.Answers[0].Lower != int64(seq) || found.Answers[0].Range.To < last || found.Now < last {
			t.Fatalf("%+v %v, and hit %d was stored at %d", found, err, seq, last)
		}
		late.armed.Store(true)
		top, err := reader.Top(t.Context(), span, 1)
		if err != nil || len(top.Counters) != 1 || top.Counters[0].Lower != int64(seq) || top.Counters[0].Range.To < last {
			t.Fatalf("%+v %v, and hit %d was stored at %d", top, err, seq, last)
		}
	}
}

// beforeHashes does something once, before the next hashes are read.
type beforeHashes struct {
	armed atomic.Bool
	do    func()
}

func (*beforeHashes) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*beforeHashes) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (b *beforeHashes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		reads := slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool {
			key, _ := cmd.Args()[len(cmd.Args())-1].(string)
			return (cmd.Name() == "hgetall" || cmd.Name() == "hvals") && strings.Contains(key, "}:h:")
		})
		if reads && b.armed.Swap(false) {
			b.do()
		}
		return next(ctx, cmds)
	}
}

// An answer costs one round trip, and two when Redis's clock has been set.
func anAnswerTakesOneRoundTrip(t *testing.T, r *rig) {
	if _, cluster := r.client.(*redis.ClusterClient); cluster {
		t.Skip("nodes are asked side by side: the trips of one are counted")
	}
	defer r.clock.Ahead(0)
	var trips atomic.Int64
	r.client.AddHook(countTrips{&trips})
	reader := window.NewReader(r.store)
	ask := func(want int, why string) {
		t.Helper()
		trips.Store(0)
		if _, err := reader.Answer(t.Context(), []window.Question{{Counter: "a", Span: window.Last(time.Minute)}}); err != nil || trips.Load() != int64(want) {
			t.Errorf("%s: %d round trips, want %d: %v", why, trips.Load(), want, err)
		}
	}
	ask(2, "the first answer, which the layout is read for")
	for range 5 {
		ask(1, "another one")
	}
	r.clock.Ahead(40 * time.Second)
	ask(2, "Redis's clock was set forward")
	ask(1, "after that")
	r.clock.Ahead(-4 * time.Minute)
	ask(2, "Redis's clock was set back")
	ask(1, "after that")
	if ahead, known := reader.ClockDifference(); !known || (ahead+4*time.Minute).Abs() > time.Minute {
		t.Errorf("Redis is said to be %v ahead, %v; want -4m", ahead, known)
	}
}

// countTrips counts what is sent in one go, but for what the client sends by itself on a new connection.
type countTrips struct{ n *atomic.Int64 }

func (countTrips) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c countTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "hello" {
			c.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (c countTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "client" {
			c.n.Add(1)
		}
		return next(ctx, cmds)
	}
}
