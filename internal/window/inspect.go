package window

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/redis/go-redis/v9"
)

// inspect looks into the cells of a transaction whose reply was lost, and which
// the cursor has passed, for what that reply would have told: commands that failed all the
// same. now is Redis's clock in Unix seconds.
//
// It misses a key only if that held something else at the time, and since has
// been mended and has got a hit in the very same cell.
func (w *Writer) inspect(ctx context.Context, tx *redis.Tx, cells *Cells, now int64, out *Commit) error {
	type cell struct {
		key     string
		n       int64
		expires int64 // Unix seconds
		have    *redis.StringCmd
	}
	var asked []cell
	_, _ = tx.Pipelined(ctx, func(p redis.Pipeliner) error { // the errors are those of the single commands
		var each []cellCount
		for k := range cells.counters {
			c := &cells.counters[k]
			each = cells.cells(c, each)
			for _, at := range each {
				t := w.layout.Tiers[at.tier]
				epoch, field := t.place(at.cell)
				key := w.prefix(at.tier, epoch) + c.name
				get := redis.NewStringCmd(ctx, "hget", key, field)
				asked = append(asked, cell{key, at.n, t.deadline(epoch, c.hash), get})
				_ = p.Process(ctx, get) // queues it
			}
		}
		return nil
	})
	for _, a := range asked {
		have, err := a.have.Int64()
		switch {
		case errors.Is(err, redis.Nil):
			if a.expires-now > 1 { // otherwise it may have expired since the clock was asked
				out.failed(&ForeignError{Key: a.key, Err: errors.New("hits that were added are not in it")})
			}
		case a.have.Err() != nil:
			if err := foreign(a.key, a.have.Err()); !isForeign(err) {
				return err
			}
			out.failed(&ForeignError{Key: a.key, Err: a.have.Err()})
		case err != nil:
			out.failed(&ForeignError{Key: a.key, Err: err})
		case have > math.MaxInt64-a.n:
			out.failed(&ForeignError{Key: a.key, Err: errors.New("one more hit would overflow it")})
		}
	}
	return nil
}

// ClockAhead is how much a server's clock is ahead of this process's (negative: behind), if it
// showed that moment between the asking and the answer. What the round trip may explain is no difference.
func ClockAhead(server, asked, answered time.Time) time.Duration {
	switch {
	case server.After(answered):
		return server.Sub(answered)
	case server.Before(asked):
		return server.Sub(asked)
	}
	return 0
}
