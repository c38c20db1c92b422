package window

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// increments makes the HINCRBY commands of a transaction, most of what a worker
// sends. It keeps the arguments' memory from one transaction to the next: the
// client takes them as values of interfaces, and making each anew costs five
// allocations a command.
type increments struct {
	args    []any
	keys    []string
	numbers []int64
}

// reset takes back the memory of all commands that were made: none may be in use.
func (i *increments) reset() {
	clear(i.keys)
	i.args, i.keys, i.numbers = i.args[:0], i.keys[:0], i.numbers[:0]
}

// add queues HINCRBY key field n.
func (i *increments) add(ctx context.Context, p redis.Pipeliner, key string, field, n int64) {
	i.keys = append(i.keys, key)
	i.numbers = append(i.numbers, field, n)
	last := len(i.numbers) - 1
	first := len(i.args)
	i.args = append(i.args, "hincrby", &i.keys[len(i.keys)-1], &i.numbers[last-1], &i.numbers[last])
	_ = p.Process(ctx, redis.NewIntCmd(ctx, i.args[first:len(i.args):len(i.args)]...)) // queues it
}
