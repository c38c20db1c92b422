package consume

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// atRest waits until as_of is so far beyond every shard's cursor that only a claim can have told it.
func (r *rig) atRest() {
	r.t.Helper()
	stack.Eventually(r.t, soon, "as_of to move while the cursors stand", func() (bool, string) {
		got, err := r.answer()
		var cursors int64
		for shard := range testLayout.Shards {
			cursors = max(cursors, r.cursor(shard).AsOf)
		}
		return err == nil && got.AsOf > cursors+2*cursorEvery.Milliseconds(), fmt.Sprintf("%+v %v, the cursors' is %d", got, err, cursors)
	})
}

func TestAStreamAtRestIsClaimed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	r.start()
	r.settled(0) // nothing was ever stored
	r.atRest()
	r.publish(5)
	r.settled(5)
	r.atRest()

	// Redis has fallen back to before the hits.
	claimed := r.redis.Client().HGet(t.Context(), "test:idle", "HITS").Val()
	keys := append(stack.Scan(t, r.redis.Client(), "test:{*"), "test:idle")
	if err := r.redis.Client().Del(t.Context(), keys...).Err(); err != nil {
		t.Fatal(err)
	}
	r.logs.await(t, "taking the stream again", window.ErrRewound.Error())
	r.settled(5)
	r.atRest()

	// The claims alone have fallen back: that is no reason to take the stream again.
	if err := r.redis.Client().HSet(t.Context(), "test:idle", "HITS", claimed).Err(); err != nil {
		t.Fatal(err)
	}
	r.settled(5)
	r.atRest()
	if n := r.logs.count("taking the stream again"); n != 1 {
		t.Errorf("the stream was taken again %d times, want once", n)
	}
}

// If the claims cannot be written, the cursors move as if there were none.
func TestForeignClaimsStopNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	w := r.start()
	r.publish(5)
	r.settled(5)
	if err := r.redis.Client().Set(t.Context(), "test:idle", "not ours", 0).Err(); err != nil {
		t.Fatal(err)
	}
	r.logs.await(t, "could not be written", "test:idle")
	r.publish(5)
	r.cursors(10)
	for range 3 {
		before := r.cursor(0).AsOf
		stack.Eventually(t, soon, "the cursors to move", func() (bool, string) { return r.cursor(0).AsOf > before, "as_of stands still" })
	}
	var foreign *window.ForeignError
	if _, err := r.answer(); !errors.As(err, &foreign) {
		t.Errorf("an answer without the claims: %v", err)
	}
	if err := r.redis.Client().Del(t.Context(), "test:idle").Err(); err != nil {
		t.Fatal(err)
	}
	r.settled(10)
	r.atRest()
	if n := w.metric("sessions_total"); n != 1 {
		t.Errorf("%v sessions, want one", n)
	}
}

// What of a stream is written when nothing but as_of moves.
func TestCursorsAtRestMoveSeldom(t *testing.T) {
	t.Parallel()
	const shards = 3
	now := time.Now()
	place := window.Cursor{Created: 1, Seq: 7, Stored: 8, AsOf: 9}
	later, further, discarded := place, place, place
	later.AsOf = 10
	further.Seq, further.Stored, further.AsOf = 8, 9, 10
	discarded.IncompleteBefore = 5
	other := place
	other.Stored = 7 // as after a roll-back that shards were at different places of
	all, none, moved := []int{0, 1, 2}, []int(nil), func(ago time.Duration) time.Time { return now.Add(-ago) }
	for _, test := range []struct {
		name    string
		next    window.Cursor
		first   window.Cursor // of shard 0
		moved   time.Time
		doubted bool
		last    bool // flush of the session
		want    []int
	}{
		{"nothing moves", place, place, moved(time.Hour), false, false, none},
		{"as_of alone", later, place, moved(cursorEvery), false, false, none},
		{"as_of alone, for long", later, place, moved(renewEvery), false, false, all},
		{"as_of alone, and the claim was lost", later, place, moved(0), true, false, all},
		{"as_of alone, at the end", later, place, moved(0), false, true, all},
		{"the place, so far", further, place, moved(0), false, false, none},
		{"the place", further, place, moved(cursorEvery), false, false, all},
		{"a shard is behind", further, further, moved(cursorEvery), false, false, []int{1, 2}},
		{"a shard has another message of the number", later, other, moved(cursorEvery), false, false, all},
		{"messages were discarded", discarded, place, moved(0), false, false, all},
	} {
		c := &committer{setup: &setup{stream: "HITS", claims: &claims{}}, standing: &standing{}}
		for range shards {
			c.writers = append(c.writers, &shardWriter{position: place, moved: test.moved})
		}
		c.writers[0].position = test.first
		if test.doubted {
			c.claims.note(map[string]window.Claim{"HITS": {}}, []string{"HITS"}, nil)
		}
		l := &load{batch: window.NewBatch(window.Layout{Tiers: testLayout.Tiers, Shards: shards})}
		if got := c.due(l, goal{Cursor: test.next}, now, test.last); !slices.Equal(got, test.want) {
			t.Errorf("%s: shards %v, want %v", test.name, got, test.want)
		}
		c.claims = nil // without claims, cursors move as ever
		if got := c.due(l, goal{Cursor: later}, now, false); test.name == "as_of alone" && !slices.Equal(got, all) {
			t.Errorf("without claims: shards %v, want all", got)
		}
	}
}

// A message takes the place of one that was rolled away, and its number. Redis loses the commit of it, and not the
// claim, which is on another server of its cluster: the old cursor has the number and not the message.
func TestAClaimIsNotOfTheMessageBefore(t *testing.T) {
	t.Parallel()
	boot.QuietRedis()
	for changes := range 16 { // of Redis: how many the second message has made depends on chance
		testStory(t, simPlan{
			tiers: "1s/4s,4s/60s", shards: 2, maxCommands: 40, flush: 50 * simTick, workers: 1,
			events: []simEvent{
				{kind: "publish"},
				{kind: "wait", d: 2500 * simTick},
				{kind: "stream rolled back", d: 5 * simTick},
				{kind: "publish"},
				{kind: "wait", d: 5500 * simTick},
				{kind: "roll back, claims stay", n: changes},
			},
		})
	}
}
