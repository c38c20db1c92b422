package read

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

// Reader answers questions from Redis. It is safe for concurrent use.
type Reader struct {
	Store *schema.Store

	// MaxCells bounds the cells that the hashes of one call can hold; 0: no bound. A filled cell costs about
	// 0.6 µs and 110 bytes (118,000 cells of 2000 counters took 70 ms and 13 MB, on two shared cores).
	MaxCells int64
	// MaxPoints bounds the points of one call of Series; 0: no bound.
	MaxPoints int64

	// MaxUniqueCells bounds the unique cells that one call reads, once per union; 0: no bound. A cell of
	// 2,000 unique values or more costs Redis 39 µs, and a smaller one less.
	MaxUniqueCells int64

	// Local is the local clock. Only differences between its times matter.
	Local func() time.Time

	clocks clocks
	trips  gatherer

	directory atomic.Pointer[schema.Directory] // nil before the first answer, and after it has turned out to be old
}

// NewReader returns a reader of a store's namespace.
func NewReader(store *schema.Store) *Reader {
	r := &Reader{Store: store, Local: time.Now}
	// A node of a cluster that hangs would hold up the questions about the others.
	r.trips.read, r.trips.apart = r.travel, store.Client.IsCluster()
	return r
}

// ErrStale means that a plan's layout, list of streams or time was wrong. The question may be planned again.
var ErrStale = errors.New("layout, streams or time have changed while Redis was asked")

// maxTries bounds how often a question is planned. The second plan uses what the first attempt has found.
const maxTries = 3

// Answer answers all questions in one round trip, in their order, at one moment of Redis's clock. It returns
// ErrNoLayout before the first worker has started, a *QuestionError for a bad question, a *TooMuchError for
// too many, a *ForeignError if another program has written to a key, and Redis's errors unchanged.
func (r *Reader) Answer(ctx context.Context, questions []window.Question) (window.Answers, error) {
	asked := totalsPlanner{questions: questions}
	found, err := r.ask(ctx, asked.plan)
	if err != nil {
		return window.Answers{}, asked.named(err, len(questions))
	}
	return asked.add(found.totals()), nil
}

// Fall answers, like Answer, how many hits a counter has in the window that ends now, and how long it takes
// without new hits until the total is at most most. Its errors are those of Answer.
func (r *Reader) Fall(ctx context.Context, counter string, length time.Duration, most int64) (window.Answers,
	time.Duration, error) {
	found, err := r.ask(ctx, func(d *schema.Directory, now int64) ([]window.Plan, error) {
		plans, err := planAll(d.Layout, []window.Question{{Counter: counter, Span: window.Last(length)}}, now)
		if err == nil {
			plans[0] = plans[0].Alone(d.Layout) // of a divided range, a later one needs other hashes
		}
		return plans, err
	})
	if err != nil {
		return window.Answers{}, 0, err
	}
	p := &found.plans[0]
	wait := p.Fall(most, func(later *window.Plan) int64 { return found.estimate(later, found.cells[0]).Total })
	return found.totals(), wait, nil
}

func untilFresh[T any](try func() (T, error)) (out T, err error) {
	for range maxTries {
		if out, err = try(); !errors.Is(err, ErrStale) {
			break
		}
	}
	return out, err
}

// prepare returns the directory and the moment with which a question is planned.
func (r *Reader) prepare(ctx context.Context) (*schema.Directory, instant, error) {
	dir := r.directory.Load()
	at, ok := r.clocks.now(r.Local())
	if dir != nil && ok {
		return dir, at, nil
	}
	dir, err := r.readDirectory(ctx)
	if err != nil {
		return nil, instant{}, err
	}
	at, _ = r.clocks.now(r.Local())
	return dir, at, nil
}

// Look reads layout, streams and clock, to check whether questions can be answered. Errors: those of Answer.
func (r *Reader) Look(ctx context.Context) (window.Layout, error) {
	dir, err := r.readDirectory(ctx)
	if err != nil {
		return window.Layout{}, err
	}
	return dir.Layout, nil
}

func (r *Reader) readDirectory(ctx context.Context) (*schema.Directory, error) {
	var t trip
	err := r.travel(ctx, &t)
	if err != nil {
		return nil, fmt.Errorf("read layout of %s: %w", r.Store.Keys.Namespace, err)
	}
	dir, err := schema.ParseDirectory(t.record, t.list)
	if errors.Is(err, schema.ErrNoLayout) {
		r.directory.Store(nil)
		err = schema.NoLayout(r.Store.Keys.Namespace)
	}
	if err != nil {
		return nil, err
	}
	r.clocks.learn(instant{milli: t.times.Latest().UnixMilli(), local: t.sent}, t.sent, t.received, t.times,
		math.MaxInt64)
	r.directory.Store(dir)
	return dir, nil
}

// ClockDifference returns how far Redis's clock was ahead of this machine's at the last answer (on a cluster,
// the most different clock). It is false before the first answer. No answer depends on it.
func (r *Reader) ClockDifference() (ahead time.Duration, known bool) {
	return r.clocks.difference(r.Local())
}

// travel makes a trip: of each shard cursors before hashes, then the list of streams, and the clocks last.
// The list comes after every as_of, because a new stream is listed before any as_of claims its hits.
func (r *Reader) travel(ctx context.Context, t *trip) (err error) {
	k := r.Store.Keys
	record, idle := redis.NewRawCmd(ctx, "get", k.Layout()), redis.NewRawCmd(ctx, "hgetall", k.Claims())
	list := redis.NewRawCmd(ctx, "hgetall", k.Streams())
	t.sent = r.Local()
	t.times, err = r.Store.Client.ReadInOrder(ctx, func(p redis.Pipeliner) {
		_ = p.BatchProcess(ctx, record, idle)
		t.cursors.queue(ctx, p, "hmget", schema.CursorArgs...)
	}, func(p redis.Pipeliner) {
		t.queueHashes(ctx, p)
		t.unions.queueUnions(ctx, p)
	}, func(p redis.Pipeliner) {
		_ = p.BatchProcess(ctx, list)
	})
	if err != nil {
		return err
	}
	t.received = r.Local()
	t.record, t.list = cluster.Reply{Key: k.Layout(), Text: string(record.Val())},
		cluster.Reply{Key: k.Streams(), Text: string(list.Val())}
	t.idle = cluster.Reply{Key: k.Claims(), Text: string(idle.Val())}
	return nil
}
