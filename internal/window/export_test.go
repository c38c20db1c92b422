package window

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// ReadInOrder is the method, for tests of what comes before what.
var ReadInOrder = func(s *Store, ctx context.Context, first, then, last func(redis.Pipeliner)) (ServerTimes, error) {
	return s.Client.ReadInOrder(ctx, first, then, last)
}

// Gathered is how many hashes the next shared trip of a reader is to read.
func Gathered(r *Reader) int { return r.trips.gathered() }

func init() { replicated = 20 * time.Millisecond }
