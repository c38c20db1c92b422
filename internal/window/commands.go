package window

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// commands makes the HINCRBY and EXPIREAT commands of a transaction, most of what
// a worker sends. It keeps the arguments' memory from one transaction to the next: the
// client takes them as values of interfaces, and making each anew costs five
// allocations a command.
type commands struct {
	args    []any
	keys    []string
	numbers []int64
}

// reset takes back the memory of all commands that were made: none may be in use.
func (c *commands) reset() {
	clear(c.keys)
	c.args, c.keys, c.numbers = c.args[:0], c.keys[:0], c.numbers[:0]
}

// increment queues HINCRBY key field n.
func (c *commands) increment(ctx context.Context, p redis.Pipeliner, key string, field, n int64) {
	_ = p.Process(ctx, redis.NewIntCmd(ctx, c.arguments("hincrby", key, field, n)...)) // queues it
}

// expireAt queues EXPIREAT key deadline, in Unix seconds.
func (c *commands) expireAt(ctx context.Context, p redis.Pipeliner, key string, deadline int64) {
	_ = p.Process(ctx, redis.NewBoolCmd(ctx, c.arguments("expireat", key, deadline)...)) // queues it
}

// arguments are those of one command, in the kept memory.
func (c *commands) arguments(name, key string, numbers ...int64) []any {
	first, from := len(c.args), len(c.numbers)
	c.keys = append(c.keys, key)
	c.numbers = append(c.numbers, numbers...)
	c.args = append(c.args, name, &c.keys[len(c.keys)-1])
	for i := range numbers {
		c.args = append(c.args, &c.numbers[from+i])
	}
	return c.args[first:len(c.args):len(c.args)]
}
