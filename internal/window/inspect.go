package window

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/redis/go-redis/v9"
)

// inspect checks the cells of a transaction whose reply was lost although the cursor has
// moved. It looks for what the reply would have shown: single commands that failed. now is
// Redis's clock in Unix seconds, for which the writer's changes were worked out.
//
// It misses a failed command only if somebody has mended the key since, and the very same cell has
// then got a hit.
func (w *Writer) inspect(ctx context.Context, tx *watched, now int64, out *Commit) error {
	cells := w.changes.increments
	replies := make([]*redis.StringCmd, len(cells))
	_, _ = tx.Pipelined(ctx, func(p redis.Pipeliner) error { // the errors are those of the single commands
		for i, c := range cells {
			replies[i] = redis.NewStringCmd(ctx, "hget", c.key, c.field)
			_ = p.Process(ctx, replies[i]) // queues it
		}
		return nil
	})
	for i, c := range cells {
		have, err := replies[i].Int64()
		switch {
		case errors.Is(err, redis.Nil):
			if c.deadline-now > 1 { // otherwise it may have expired since the clock was asked
				out.failed(&ForeignError{Key: c.key, Err: errors.New("hits that were added are not in it")})
			}
		case replies[i].Err() != nil:
			if err := foreign(c.key, replies[i].Err()); !IsForeign(err) {
				return err
			}
			out.failed(&ForeignError{Key: c.key, Err: replies[i].Err()})
		case err != nil:
			out.failed(&ForeignError{Key: c.key, Err: err})
		case have > math.MaxInt64-c.n:
			out.failed(&ForeignError{Key: c.key, Err: errors.New("one more hit would overflow it")})
		}
	}
	return nil
}

// ClockAhead returns how far a server's clock is ahead of this process's (negative: behind), if it
// showed that moment between the question and the answer. It leaves out any difference that the
// round trip may explain.
func ClockAhead(server, asked, answered time.Time) time.Duration {
	switch {
	case server.After(answered):
		return server.Sub(answered)
	case server.Before(asked):
		return server.Sub(asked)
	}
	return 0
}
