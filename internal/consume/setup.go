package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/hit"
	"tallyroll/internal/platform/cause"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/rules"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/schema"
)

// Progress is called every second for each stream that is far behind, and with an empty progress.State when
// that ends. Calls are concurrent, and must not block.
type Progress func(stream string, p progress.State)

// Limits bounds what a session holds and sends.
type Limits struct {
	FlushInterval time.Duration // the longest time that a hit waits in memory before its commit begins
	MaxCommands   int           // Redis commands of one transaction
	MaxLoad       int           // bytes of the hits in half a buffer; in a Config, of all streams together
	MaxAhead      time.Duration // how far a hit's own time may be ahead of the time it was stored
	MaxHits       int           // hits of one message
}

// HitLimits returns the bounds of hits that are counted in this layout.
func (l Limits) HitLimits(layout window.Layout) hit.Limits {
	return hit.Limits{MaxAhead: l.MaxAhead, MaxHits: l.MaxHits, Place: placeHits(layout)}
}

// placeHits returns a function that hashes a counter. late is why a hit is late: no tier still held its time.
func placeHits(layout window.Layout) func(counter []byte, at, stored int64) (hash uint64, late string) {
	return func(counter []byte, at, stored int64) (uint64, string) {
		hash := window.HashCounter(counter)
		if layout.Holds(hash, at, stored) {
			return hash, ""
		}
		return hash, fmt.Sprintf(
			"ts %d (%s) is %s earlier than the hit was stored (%s); %s (ts is in Unix milliseconds)",
			at, hit.Moment(at), human.Millis(stored-at), hit.Moment(stored), layout.Tiers.Reach())
	}
}

// Config configures a Keeper.
type Config struct {
	Store    *schema.Store
	Layout   window.Layout // of the namespace in Store
	Limits   Limits
	Metrics  *Metrics
	Waits    *Waits
	Rules    *Rulebook // nil: messages carry hits
	Copies   *Copies   // nil: every message counts
	Log      zerolog.Logger
	Progress Progress // may be nil
	// Listed reports whether all streams created before the call are listed; nil: always. While not, as_of
	// does not move.
	Listed func(context.Context) bool
}

// setup holds what the parts of a session share. Only makePlan changes it: the layout.
type setup struct {
	Config     // with the limits and the log of this stream
	stream     string
	source     source.Stream
	outage     *outage
	clocks     *clocks
	claims     *claims // nil: only cursors have as_of
	rejects    *rejectLog
	overflows  *sync.Map   // what reportOverflow has logged
	maxIdle    int         // checks in a row that may find the reader idle, see stalledAfter
	enterPhase func(phase) // called when a phase begins
}

// phase is how far a session has got. The phases follow one another in this order, and any may be the last.
type phase int32

const (
	resuming phase = iota // reads the cursors, decides where each shard continues, and writes the cursors
	opening               // requests messages, and verifies that the stream is still the one of the plan
	counting              // reads, coalesces and commits
	ending                // has stopped reading: commits what is in memory and frees the consumer
)

// redisLost logs an outage once. A commit that was cancelled because another shard failed proves no outage.
func (s *setup) redisLost(ctx context.Context, shard int, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	s.Metrics.retries.Inc()
	if redisconn.IsFull(err) {
		err = cause.RedisFull.With(s.Store.DescribeFull(ctx, s.Layout, shard)).Of(err)
	} else {
		err = redisconn.Explain(err)
	}
	s.outage.begin(err)
	s.Waits.setCause(s.stream, err)
}

// reportLoss counts that cursors report a loss, or a double count, and begins the log line about it.
func (s *setup) reportLoss(cause reason) *zerolog.Event {
	s.Metrics.lossReports.WithLabelValues(s.stream, string(cause)).Inc()
	return s.Log.Warn()
}

// reportRedisFault logs what a commit has found and reported in its cursor.
func (s *setup) reportRedisFault(err error) {
	cause := tornFile
	if errors.Is(err, commit.ErrClockFell) {
		cause = redisClockFell
	}
	s.reportLoss(cause).Err(err).Msg("hits may be missing or count twice: answers about this time have complete: false")
}

// resumePlan is where each shard continues, and by which versions messages are read. It is decided before
// the stream is read.
type resumePlan struct {
	state        source.State // of the stream, when the cursors were compared with it
	writers      []*shardWriter
	concurrency  int                   // how many shards may be committed at the same time
	namings      namings               // versions by which messages are read
	namingText   string                // namings, as in all cursors of the session
	rules        *rules.Set            // the last version's; nil without rules
	ruleSets     map[string]*rules.Set // of all versions by which the session reads, by fingerprint
	readAfter    uint64                // the smallest cursor, after which reading begins; set by open
	registeredAt time.Time             // when register was last tried
}

func (p *resumePlan) positions() []window.Cursor {
	out := make([]window.Cursor, len(p.writers))
	for shard, w := range p.writers {
		out[shard] = w.position
	}
	return out
}

// smallestPosition returns the position after which reading begins.
func (p *resumePlan) smallestPosition() window.Cursor {
	return slices.MinFunc(p.positions(), func(a, b window.Cursor) int { return cmp.Compare(a.Seq, b.Seq) })
}

// commitConcurrency is how many shards are committed at the same time per Redis server. Redis executes
// commits that arrive together before it serves any other client: with 8, the PING of another client took
// 12.8 ms (p99). With 2 it takes 6 ms, at the cost of 5 % of the speed.
const commitConcurrency = 2

// shardWriter commits one shard of a stream.
type shardWriter struct {
	*commit.Writer
	position window.Cursor // the cursor as written last; before that, where the shard continues
	movedAt  time.Time     // when a commit wrote it last
}

func (w *shardWriter) updatePosition() { w.position, _ = w.Cursor() }

// write writes the cursor's fields other than the sequence.
func (w *shardWriter) write(ctx context.Context, cursor window.Cursor) error {
	err := w.Write(ctx, cursor)
	if err == nil {
		w.updatePosition()
	}
	return err
}

// register writes the entries by which readers find cursors, and the named rules. It returns when it tried.
func (s *setup) register(ctx context.Context, plan *resumePlan) (time.Time, error) {
	err := s.Store.EnsureLayout(ctx, s.Layout)
	if err == nil {
		err = s.Store.AddStreamSince(ctx, s.stream, plan.state.Since())
	}
	if err == nil {
		err = s.keepRules(ctx, plan)
	}
	return time.Now(), err
}

// keepRules writes the texts of the versions' rules that are in memory.
func (s *setup) keepRules(ctx context.Context, plan *resumePlan) error {
	texts := s.Rules.texts(plan.namings)
	for fingerprint, set := range plan.ruleSets {
		texts[fingerprint] = set.Text()
	}
	return s.Store.Rules.Keep(ctx, texts)
}

var errRecreated = errors.New("the stream was recreated")

// confirmSame returns the stream's current state, or errRecreated if it was recreated since the plan.
func (s *setup) confirmSame(ctx context.Context, plan *resumePlan) (source.State, error) {
	state, err := source.Confirmed(ctx, s.source)
	if err == nil && state.Created != plan.state.Created {
		err = errRecreated
	}
	return state, err
}

// readConcurrency is how many shards' cursors are read or written at the same time.
const readConcurrency = 8

// readCursors returns a stream's cursors by shard; the zero value for a shard without one.
func readCursors(ctx context.Context, store *schema.Store, layout window.Layout, name string) ([]window.Cursor, error) {
	out := make([]window.Cursor, layout.Shards)
	err := eachShard(ctx, layout.Shards, readConcurrency, func(ctx context.Context, shard int) error {
		writer, err := commit.OpenWriter(ctx, store, layout, name, shard)
		if err == nil {
			out[shard], _ = writer.Cursor()
		}
		return err
	})
	return out, err
}

// eachShard calls do for every shard, at most concurrency at a time. The first error cancels the others.
func eachShard(ctx context.Context, shards, atOnce int, do func(ctx context.Context, shard int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var begun atomic.Int64
	work := func() error {
		for {
			shard := int(begun.Add(1)) - 1
			if shard >= shards {
				return nil
			}
			if err := do(ctx, shard); err != nil {
				return err
			}
		}
	}
	for range min(shards, atOnce) - 1 { // more goroutines would spend their time growing their stacks
		group.Go(work)
	}
	if err := work(); err != nil {
		group.Go(func() error { return err })
	}
	return group.Wait()
}
