package window

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

type trip struct {
	wanted
	replies
	sharedTrip
}

// replies are what a trip reads in addition to the wanted keys.
type replies struct {
	record, list   Reply       // the layout record and the list of streams
	idle           Reply       // the claims
	sent, received time.Time   // by the local clock
	times          ServerTimes // when everything had been read
}

// travel makes a trip: of each shard cursors before hashes, then the list of streams, and the clocks last.
// The list comes after every as_of, because a new stream is listed before any as_of claims its hits.
func (r *Reader) travel(ctx context.Context, t *trip) (err error) {
	k := r.Store.Keys
	record, idle := redis.NewRawCmd(ctx, "get", k.Layout()), redis.NewRawCmd(ctx, "hgetall", k.Claims())
	list := redis.NewRawCmd(ctx, "hgetall", k.Streams())
	t.sent = r.local()
	t.times, err = r.Store.Client.ReadInOrder(ctx, func(p redis.Pipeliner) {
		_ = p.BatchProcess(ctx, record, idle)
		t.cursors.queue(ctx, p, "hmget", CursorArgs...)
	}, func(p redis.Pipeliner) {
		t.hashes.queue(ctx, p, "hgetall")
		t.sums.queue(ctx, p, "hvals")
		t.unions.queueUnions(ctx, p)
	}, func(p redis.Pipeliner) {
		_ = p.BatchProcess(ctx, list)
	})
	if err != nil {
		return err
	}
	t.received = r.local()
	t.record, t.list = Reply{k.Layout(), string(record.Val())}, Reply{k.Streams(), string(list.Val())}
	t.idle = Reply{k.Claims(), string(idle.Val())}
	return nil
}
