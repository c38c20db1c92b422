package cluster

import (
	"cmp"
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// WatchedTx is a transaction on keys that must not change meanwhile, in two round trips. WATCH goes out
// together with the reads that follow it. Redis runs the commands of a connection in order, so a change that
// the reads do not show makes EXEC fail.
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

// Read watches the keys and then runs the commands of queue, in one round trip. Its error is that of WATCH,
// after which the other replies prove nothing. The caller checks their errors.
func (w *WatchedTx) Read(ctx context.Context, queue func(redis.Pipeliner)) error {
	args := append(make([]any, 0, 1+len(w.keys)), "watch")
	for i := range w.keys {
		args = append(args, w.keys[i])
	}
	watch := redis.NewStatusCmd(ctx, args...)
	_, err := w.Pipelined(ctx, func(p redis.Pipeliner) error {
		_ = p.Process(ctx, watch) // queues it
		queue(p)
		return nil
	})
	w.watching = true
	if watch.Err() == nil && watch.Val() == "" {
		// If Redis refuses the password of a new connection, go-redis 9.23 leaves all commands without an
		// error and without a reply, as if there were no cursor.
		return cmp.Or(err, errors.New("WATCH was not answered"))
	}
	return watch.Err()
}

// Exec runs the commands of queue in a transaction. If a key has changed since look, it runs none of them and
// returns redis.TxFailedErr.
func (w *WatchedTx) Exec(ctx context.Context, queue func(redis.Pipeliner)) ([]redis.Cmder, error) {
	commands, err := w.TxPipelined(ctx, func(p redis.Pipeliner) error {
		queue(p)
		return nil
	})
	w.watching = err != nil // EXEC may not have run
	return commands, err
}

// release ends a WATCH that no EXEC has ended. Otherwise a change of its keys could fail the next transaction
// on the pooled connection. The Tx itself releases only what its method Watch watches.
func (w *WatchedTx) release(ctx context.Context) {
	if w.watching {
		_ = w.Unwatch(ctx) // if that fails, the connection is broken and closed
	}
}
