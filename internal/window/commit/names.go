package commit

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// listNames queues the names of the changes, and their sets' expiries. These must be last in the transaction.
func (w *Writer) listNames(ctx context.Context, p redis.Pipeliner) {
	coarsest := w.layout.Tiers[len(w.layout.Tiers)-1]
	for set, names := range w.changes.names {
		List(ctx, p, w.store.Keys.Names(w.shard, coarsest, set), names, coarsest.NamesDeadline(set))
	}
	for set, names := range w.changes.updates.names {
		List(ctx, p, w.store.Keys.UniqueNames(w.shard, set), names, w.layout.UniqueNamesDeadline(set))
	}
}

// List queues names for a set, and its expiry (Unix seconds).
func List(ctx context.Context, p redis.Pipeliner, set string, names []string, deadline int64) {
	members := make([]redis.Z, len(names))
	for i := range names {
		members[i].Member = names[i]
	}
	p.ZAdd(ctx, set, members...)
	p.ExpireAt(ctx, set, time.Unix(deadline, 0))
}
