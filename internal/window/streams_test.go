package window_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
)

// shardsOf commits a cursor to every shard, with writers that are returned.
func (r *rig) shardsOf(stream string, c window.Cursor) []*window.Writer {
	r.t.Helper()
	empty := window.NewBatch(layout)
	var out []*window.Writer
	for shard := range layout.Shards {
		w, err := r.store.OpenWriter(r.t.Context(), layout, stream, shard)
		if err == nil {
			_, err = w.Commit(r.t.Context(), empty.Shard(shard), c)
		}
		require.NoError(r.t, err)
		out = append(out, w)
	}
	return out
}

func (r *rig) lasting(stream string) (keys, forEver int) {
	r.t.Helper()
	for shard := range layout.Shards {
		ttl, err := r.client.TTL(r.t.Context(), fmt.Sprintf("test:{%d}:cursor:%s", shard, stream)).Result()
		require.NoError(r.t, err)
		if ttl != -2 {
			keys++
		}
		if ttl == -1 {
			forEver++
		}
	}
	return keys, forEver
}

// A stream that nobody has read yet is counted up to its creation, and no further.
func aNewStreamHoldsAsOfAtItsCreation(t *testing.T, r *rig) {
	now := time.Now()
	made := now.Add(-time.Minute)
	r.shardsOf("HITS", window.Cursor{Created: now.Add(-time.Hour).UnixNano(), Seq: 1, Stored: now.UnixNano(), AsOf: now.UnixMilli()})
	for _, test := range []struct{ created, asOf int64 }{{made.UnixMilli(), made.UnixMilli()}, {0, 0}} {
		require.NoError(t, r.store.AddStreamSince(t.Context(), "NEW", test.created))
		a, err := r.reader.Answer(t.Context(), []window.Question{{Counter: "a", Span: window.Last(10 * time.Second)}})
		if err != nil || a.AsOf != test.asOf || a.Answers[0].Complete {
			t.Errorf("%+v, %v: want as_of %d, not complete", a, err, test.asOf)
		}
	}
	// What the program before this one has written.
	for value, want := range map[string]window.Listed{"": {}, "1763683200000": {Ended: 1763683200000}, "live 1763683200000": {Created: 1763683200000}} {
		require.NoError(t, r.client.HSet(t.Context(), "test:streams", "NEW", value).Err())
		if listed, err := r.store.Streams(t.Context()); err != nil || listed["NEW"] != want {
			t.Errorf("%q is read as %+v, %v", value, listed["NEW"], err)
		}
	}
	for _, value := range []string{"0", "-5", "live", "live ", "live 0", "live x", "soon", "253402300800000"} {
		require.NoError(t, r.client.HSet(t.Context(), "test:streams", "NEW", value).Err())
		if listed, err := r.store.Streams(t.Context()); err == nil {
			t.Errorf("%q is read as %+v", value, listed["NEW"])
		}
	}
}

// The cursors of an ended stream expire, unless somebody goes on with them or the
// name is another stream's; and complete stays what it was when all of it is gone.
func whatHasEndedExpires(t *testing.T, r *rig) {
	now := time.Now()
	began := now.Add(-time.Hour)
	cursor := window.Cursor{Created: began.UnixNano(), Seq: 9, Stored: began.UnixNano(), AsOf: began.UnixMilli()}
	require.NoError(t, r.store.AddStream(t.Context(), "OLD"))
	writers := r.shardsOf("OLD", cursor)
	r.shardsOf("HITS", window.Cursor{Created: now.Add(-time.Minute).UnixNano(), Seq: 1, Stored: now.UnixNano(), AsOf: now.UnixMilli()})
	expire := func(created int64, after time.Duration) {
		t.Helper()
		for shard := range layout.Shards {
			require.NoError(t, r.store.ExpireCursor(t.Context(), "OLD", shard, created, after))
		}
	}
	gone := func() (bool, error) { return true, nil }
	if removed, err := r.store.RemoveStream(t.Context(), "OLD", gone); err != nil || removed {
		t.Errorf("a live stream was taken off the list: %v, %v", removed, err)
	}
	if ended, err := r.store.EndStream(t.Context(), "OLD", now.UnixMilli(), began.UnixMilli(), gone); err != nil || !ended {
		t.Fatalf("ended %v, %v", ended, err)
	}
	expire(cursor.Created+1, layout.Keep())
	if keys, forEver := r.lasting("OLD"); keys != layout.Shards || forEver != layout.Shards {
		t.Errorf("another incarnation's cursors: %d of %d last", forEver, keys)
	}
	expire(cursor.Created, layout.Keep())
	if keys, forEver := r.lasting("OLD"); keys != layout.Shards || forEver != 0 {
		t.Errorf("%d of %d cursors of an ended stream last", forEver, keys)
	}
	// It was not gone, or is made anew: whoever commits makes the cursor last.
	cursor.Ended = true
	for shard, w := range writers {
		require.NoError(t, errOf(w.Commit(t.Context(), window.NewBatch(layout).Shard(shard), cursor)))
	}
	if keys, forEver := r.lasting("OLD"); keys != layout.Shards || forEver != layout.Shards {
		t.Errorf("%d of %d cursors last that are written again", forEver, keys)
	}

	ask := func(back time.Duration) window.Answers {
		t.Helper()
		a, err := r.reader.Answer(t.Context(), []window.Question{{Counter: "a", Span: window.Last(back)}})
		require.NoError(t, err)
		return a
	}
	for _, when := range []string{"while its cursors are there", "without them", "off the list"} {
		// Redis has lost them, or no window reaches back to the stream's end any more.
		if a := ask(50 * time.Minute); a.Answers[0].Complete == (when == "without them") || a.AsOf != now.UnixMilli() {
			t.Errorf("%s: %+v", when, a)
		}
		if a := ask(70 * time.Minute); a.Answers[0].Complete {
			t.Errorf("%s, from before counting began: %+v", when, a)
		}
		switch when {
		case "while its cursors are there":
			expire(cursor.Created, 0)
			if keys, _ := r.lasting("OLD"); keys != 0 {
				t.Errorf("%d cursors are left", keys)
			}
		case "without them":
			if removed, err := r.store.RemoveStream(t.Context(), "OLD", gone); err != nil || !removed {
				t.Errorf("removed %v, %v", removed, err)
			}
		}
	}
	if listed, err := r.store.Streams(t.Context()); err != nil || len(listed) != 1 {
		t.Errorf("listed %+v, %v", listed, err)
	}
}
