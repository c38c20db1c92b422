package bench_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// aHit is one hit as the techniques see it.
type aHit struct {
	counter string
	at      int64 // Unix milliseconds
	n       int64
}

// technique is one way in which articles count hits in a moving window on
// Redis; one file has each family of them.
type technique struct {
	name   string
	window time.Duration
	// single: one command, and one member or entry in memory, for each hit,
	// whatever its n; the others add n.
	single bool

	// asWritten does for one hit what the article's code does for it, with as
	// many round trips, the answer included.
	asWritten func(ctx context.Context, c *redis.Client, h aHit) error
	// queue puts into a pipeline only what counting one hit needs: the
	// technique at its best. after, where it is not nil, queues into the next
	// pipeline what depends on the replies.
	queue func(ctx context.Context, p redis.Pipeliner, h aHit) (after func(redis.Pipeliner))
	// total is the counter's answer at a moment of the window's end.
	total func(ctx context.Context, c *redis.Client, counter string, now int64) (int64, error)
	// scripts are loaded before anything is counted.
	scripts []*redis.Script
}

var techniques = []technique{
	sortedSetIncr, sortedSetRandom,
	hourKeys, hoursAndFlag,
	hashPerWindow, twoKeys,
	hashPerGranularity,
	redisStream,
}

// pipelined counts hits by technique, size of them in each round trip.
type pipelined struct {
	t     technique
	pipe  redis.Pipeliner
	after []func(redis.Pipeliner)
	size  int
	hits  int
}

func newPipelined(c *redis.Client, t technique, size int) *pipelined {
	return &pipelined{t: t, pipe: c.Pipeline(), size: size}
}

func (p *pipelined) count(ctx context.Context, h aHit) error {
	if after := p.t.queue(ctx, p.pipe, h); after != nil {
		p.after = append(p.after, after)
	}
	if p.hits++; p.hits < p.size {
		return nil
	}
	return p.flush(ctx)
}

func (p *pipelined) flush(ctx context.Context) error {
	p.hits = 0
	_, err := p.pipe.Exec(ctx)
	for _, after := range p.after {
		after(p.pipe)
	}
	p.after = p.after[:0]
	return err
}

// load puts the technique's scripts into Redis.
func (t technique) load(ctx context.Context, c *redis.Client) error {
	for _, s := range t.scripts {
		if err := s.Load(ctx, c).Err(); err != nil {
			return fmt.Errorf("load the script of %s: %w", t.name, err)
		}
	}
	return nil
}

const second, minute, hour = int64(1000), int64(60_000), int64(3_600_000) // milliseconds

// member is a random name for a hit, of a UUID's length.
func member() string {
	return fmt.Sprintf("%016x-%08x-%08x--", rand.Uint64(), rand.Uint32(), rand.Uint32())
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// sumFields adds the fields of a hash whose names, as numbers, are at least from.
func sumFields(fields map[string]string, from int64) (sum int64, old []string, err error) {
	for name, value := range fields {
		at, err := strconv.ParseInt(name, 10, 64)
		if err != nil {
			return 0, nil, err
		}
		if at < from {
			old = append(old, name)
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, nil, err
		}
		sum += n
	}
	return sum, old, nil
}
