package consume

import (
	"slices"
	"testing"
	"time"

	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

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
		name      string
		next      window.Cursor
		first     window.Cursor // of shard 0
		moved     time.Time
		suspected bool
		last      bool // flush of the session
		want      []int
	}{
		{"nothing moves", place, place, moved(time.Hour), false, false, none},
		{"as_of alone", later, place, moved(cursorEvery), false, false, none},
		{"as_of alone, for long", later, place, moved(renewEvery), false, false, all},
		{"as_of alone, and the claim was lost", later, place, moved(0), true, false, all},
		{"as_of alone, at the end", later, place, moved(0), false, true, all},
		{"the place, so far", further, place, moved(0), false, false, none},
		{"the place", further, place, moved(cursorEvery), false, false, all},
		{"a shard is behind", further, further, moved(cursorEvery), false, false, []int{1, 2}},
		{"a shard has another message of the number", later, other, moved(cursorEvery), false, false, []int{0}},
		{"messages were discarded", discarded, place, moved(0), false, false, all},
	} {
		c := &committer{setup: &setup{stream: "HITS", claims: &claims{}}, resumePlan: &resumePlan{}}
		for range shards {
			c.writers = append(c.writers, &shardWriter{position: place, movedAt: test.moved})
		}
		c.writers[0].position = test.first
		if test.suspected {
			c.claims.record(map[string]schema.Claim{"HITS": {}}, []string{"HITS"}, nil)
		}
		l := &load{batch: window.NewBatch(window.Layout{Tiers: testLayout.Tiers, Shards: shards})}
		if got := c.dueShards(l, goal{Cursor: test.next}, now, test.last); !slices.Equal(got, test.want) {
			t.Errorf("%s: shards %v, want %v", test.name, got, test.want)
		}
		c.claims = nil // without claims, cursors move as ever
		if got := c.dueShards(l, goal{Cursor: later}, now, false); test.name == "as_of alone" && !slices.Equal(got, all) {
			t.Errorf("without claims: shards %v, want all", got)
		}
	}
}

// A message takes the place of one that was rolled away, and its number. Redis loses the commit of it, and
// not the claim, which is on another server of its cluster: the old cursor has the number and not the
// message.
func TestAClaimIsNotOfTheMessageBefore(t *testing.T) {
	t.Parallel()
	redisconn.Quiet()
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
