package cluster

//lint:file-ignore ST1005 Redis is a name

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tallyroll/internal/window"

	"github.com/redis/go-redis/v9"
)

// WatchedTx is a transaction on keys that must not change meanwhile, in two round trips, or three. WATCH goes
// out together with the reads that follow it. Redis runs the commands of a connection in order, so a change
// that the reads do not show makes EXEC fail.
//
// If MULTI is refused, Redis runs the rest of the pipeline without it. So an empty transaction goes before
// WATCH, and nothing is written on a connection that refuses it.
//
// A redis.Tx keeps the connection of its first commands. If that breaks, every later command fails (go-redis
// 9.23, internal/pool/pool_sticky.go), so EXEC cannot run on a connection that watches nothing.
type WatchedTx struct {
	*redis.Tx
	keys     []string
	watching bool // a WATCH may be in force
}

// Watch runs fn at most once, with a connection to the server of the keys, which share a slot. It retries
// nothing and follows no redirect.
func (c *Client) Watch(ctx context.Context, keys []string, fn func(*WatchedTx) error) error {
	node, err := c.NodeOf(ctx, keys[0])
	if err != nil {
		return err
	}
	return node.Watch(ctx, func(tx *redis.Tx) error {
		w := &WatchedTx{Tx: tx, keys: keys}
		defer w.release(ctx)
		return fn(w)
	})
}

// CheckTransactions returns an error if the server of a key refuses transactions on it.
func (c *Client) CheckTransactions(ctx context.Context, key string) error {
	return c.Watch(ctx, []string{key}, func(tx *WatchedTx) error { return tx.Read(ctx, func(redis.Pipeliner) {}) })
}

// Transact runs the commands of queue in a transaction that watches nothing, on the server of a key. The
// commands are nil if none was sent.
func (c *Client) Transact(ctx context.Context, key string, queue func(redis.Pipeliner)) (commands []redis.Cmder,
	err error) {
	err = c.Watch(ctx, []string{key}, func(tx *WatchedTx) error {
		tx.keys = nil
		if err := tx.Read(ctx, func(redis.Pipeliner) {}); err != nil {
			return err
		}
		commands, err = tx.Exec(ctx, queue)
		return err
	})
	return commands, err
}

// Read watches the keys and then runs the commands of queue, in one round trip. Its error is that of WATCH,
// or of transactions at all, after which the other replies prove nothing. The caller checks their errors.
func (w *WatchedTx) Read(ctx context.Context, queue func(redis.Pipeliner)) error {
	multi := redis.NewStatusCmd(ctx, "multi")
	guard := []redis.Cmder{multi, redis.NewSliceCmd(ctx, "exec")}
	if len(w.keys) > 0 {
		guard = append(guard, redis.NewStatusCmd(ctx, watchArgs(w.keys)...))
	}
	_, err := w.Pipelined(ctx, func(p redis.Pipeliner) error {
		_ = p.BatchProcess(ctx, guard...) // queues them
		queue(p)
		return nil
	})
	w.watching = len(w.keys) > 0
	for _, command := range guard {
		switch refused := command.Err(); {
		case refused == nil, errors.Is(refused, redis.Nil): // that of EXEC, if something was still watched
		case !isReply(refused):
			return refused
		default:
			if command.Name() != "watch" {
				w.discard(ctx) // Redis may still be inside MULTI
			}
			return fmt.Errorf("Redis refused %s, so nothing was written: %w", command.Name(), refused)
		}
	}
	if multi.Val() == "" {
		// If Redis refuses the password of a new connection, go-redis 9.23 leaves all commands without an
		// error and without a reply, as if there were no cursor.
		return cmp.Or(err, errors.New("MULTI was not answered"))
	}
	return nil
}

// ReadMore watches more keys and then runs the commands of queue, in one round trip, after Read. Its error is
// that of WATCH. The caller checks the errors of its commands.
func (w *WatchedTx) ReadMore(ctx context.Context, keys []string, queue func(redis.Pipeliner)) error {
	watch := redis.NewStatusCmd(ctx, watchArgs(keys)...)
	_, _ = w.Pipelined(ctx, func(p redis.Pipeliner) error {
		_ = p.Process(ctx, watch) // queues it
		queue(p)
		return nil
	})
	return watch.Err()
}

func watchArgs(keys []string) []any {
	args := append(make([]any, 0, 1+len(keys)), "watch")
	for i := range keys {
		args = append(args, keys[i])
	}
	return args
}

// Exec runs the commands of queue in a transaction. If a key has changed since Read, it runs none of them and
// returns redis.TxFailedErr. If Redis refused to queue a command, it ran none, and the error is that of the
// first one. window.ErrBare means that it may have run any of them, without a transaction.
func (w *WatchedTx) Exec(ctx context.Context, queue func(redis.Pipeliner)) ([]redis.Cmder, error) {
	commands, err := w.TxPipelined(ctx, func(p redis.Pipeliner) error {
		queue(p)
		return nil
	})
	w.watching = err != nil // EXEC may not have run
	differs := func(c redis.Cmder) bool { return c.Err() == nil || c.Err().Error() != err.Error() }
	switch {
	case !isReply(err) || errors.Is(err, redis.TxFailedErr):
	case redis.IsExecAbortError(err): // whose text does not say why
		if i := slices.IndexFunc(commands, differs); i >= 0 {
			err = fmt.Errorf("%s: %w", commands[i].Name(), commands[i].Err())
		}
	case !slices.ContainsFunc(commands, differs):
		// go-redis gives a refusal of EXEC, and one of MULTI, to all commands. But after one of MULTI it reads no
		// further, so the next reply is not that of the next command.
		const question = "in step?"
		if reply := w.Echo(ctx, question).Val(); reply != question {
			w.discard(ctx)
			if reply != "QUEUED" { // MULTI is not in force
				err = fmt.Errorf("%w: %w", window.ErrBare, err)
			}
		}
	}
	return commands, err
}

// discard closes the connection. go-redis 9.23 cannot be asked to, but it closes one on which a command did
// not end in time (if it heeds deadlines: see redisconn.Settings.Options).
func (w *WatchedTx) discard(ctx context.Context) {
	past, cancel := context.WithDeadline(context.WithoutCancel(ctx), time.Unix(1, 0))
	defer cancel()
	_ = w.Unwatch(past)
	w.watching = false
}

// isReply reports whether an error is a reply of the server.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// release ends a WATCH that no EXEC has ended. Otherwise a change of its keys could fail the next transaction
// on the pooled connection. The Tx itself releases only what its method Watch watches.
func (w *WatchedTx) release(ctx context.Context) {
	if w.watching {
		_ = w.Unwatch(ctx) // if that fails, the connection is broken and closed
	}
}
