package window_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
)

// Marks are read in the order of their time. One that is written again stays as it was, and the oldest go if there are too
// many.
func marksAreKept(t *testing.T, r *rig) {
	const key, most = "test:marks", 1000
	ctx := t.Context()
	read := func() []window.Mark {
		t.Helper()
		marks, err := window.NewReader(r.store).Marks(ctx)
		r.must(err)
		return marks
	}
	if got := read(); len(got) != 0 {
		t.Errorf("at first there are %+v", got)
	}
	late := window.Mark{At: 2000, Until: 3000, Kind: window.MarkLate, Stream: "HITS", Detail: `behind, "a" < b`}
	tiers := window.Mark{At: 1000, Kind: window.MarkTiers, Detail: "other tiers", Event: "1"}
	again := late
	again.At = 2500
	for _, m := range []window.Mark{late, tiers, again} {
		r.must(r.store.PutMark(ctx, m))
	}
	if got, want := read(), []window.Mark{tiers, late}; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if ttl, err := r.client.TTL(ctx, key).Result(); err != nil || ttl != -1 {
		t.Errorf("the marks expire after %v, %v", ttl, err)
	}
	var full []redis.Z
	for i := range most - 2 {
		full = append(full, redis.Z{Score: float64(4000 + i), Member: fmt.Sprintf(`{"kind":"loss","detail":"%d"}`, i)})
	}
	r.must(r.client.ZAdd(ctx, key, full...).Err())
	if got := read(); len(got) != most || got[0] != tiers {
		t.Errorf("%d marks, the first %+v", len(got), got[0])
	}
	r.must(r.store.PutMark(ctx, window.Mark{At: 9000, Kind: window.MarkLoss, Detail: "one too many"}))
	if got := read(); len(got) != most || got[0] != late || got[most-1].Detail != "one too many" {
		t.Errorf("%d marks from %+v to %+v", len(got), got[0], got[len(got)-1])
	}

	foreign := func(err error, why string) {
		t.Helper()
		var f *window.ForeignError
		if !errors.As(err, &f) || f.Key != key {
			t.Errorf("%s: %v", why, err)
		}
	}
	for member, score := range map[string]float64{"no JSON": 1, `{"kind":"loss"}`: -1} {
		r.must(errors.Join(r.client.Del(ctx, key).Err(), r.client.ZAdd(ctx, key, redis.Z{Score: score, Member: member}).Err()))
		_, err := window.NewReader(r.store).Marks(ctx)
		foreign(err, member)
	}
	r.must(errors.Join(r.client.Del(ctx, key).Err(), r.client.Set(ctx, key, "x", 0).Err()))
	_, err := window.NewReader(r.store).Marks(ctx)
	foreign(err, "a key of another type is read")
	foreign(r.store.PutMark(ctx, late), "a key of another type is written")
}
