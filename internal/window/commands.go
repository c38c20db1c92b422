package window

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// commands makes the HINCRBY and EXPIREAT commands of a transaction, most of what
// a worker sends. It keeps the memory of the arguments from one transaction to the next. The
// client takes arguments as interface values, and making each anew costs five
// allocations per command. So the arguments point into the changes.
type commands struct{ args []any }

// queue queues the increments, and after all of them the expiries: past a hash's deadline,
// EXPIREAT deletes the hash, and an increment after that would make it anew without an
// expiry. No command that was queued before may still be in use.
func (c *commands) queue(ctx context.Context, p redis.Pipeliner, of *changes) {
	c.args = c.args[:0]
	for i := range of.increments {
		inc := &of.increments[i]
		_ = p.Process(ctx, redis.NewIntCmd(ctx, c.arguments("hincrby", &inc.key, &inc.field, &inc.n)...)) // queues it
	}
	for i := range of.set {
		h := &of.set[i]
		_ = p.Process(ctx, redis.NewBoolCmd(ctx, c.arguments("expireat", &h.key, &h.deadline)...)) // queues it
	}
}

// arguments returns the arguments of one command, in the kept memory.
func (c *commands) arguments(args ...any) []any {
	first := len(c.args)
	c.args = append(c.args, args...)
	return c.args[first:len(c.args):len(c.args)]
}
