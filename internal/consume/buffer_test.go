package consume

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/window"
)

// testHits are hits of counters c0, c1, … at the moment of storing.
func testHits(counters ...int) []hit.Hit {
	var hits []hit.Hit
	for _, c := range counters {
		name := fmt.Appendf(nil, "c%d", c)
		hits = append(hits, hit.Hit{Counter: name, Hash: window.HashCounter(name), At: testStored, N: 1})
	}
	return hits
}

func testMessage(seq uint64, counters ...int) message {
	return message{seq: seq, stored: testStored * 1e6, hits: testHits(counters...)}
}

// A reader and a committer share a buffer: what goes in comes out once, in loads that keep their bound. It is
// one of memory, and in a replay one of commands of each shard.
func TestBufferGivesEveryHitOnce(t *testing.T) {
	t.Parallel()
	t.Run("replay", func(t *testing.T) { testBufferGivesEveryHitOnce(t, true) })
	t.Run("afterwards", func(t *testing.T) { testBufferGivesEveryHitOnce(t, false) })
}

func testBufferGivesEveryHitOnce(t *testing.T, replay bool) {
	const messages, maxCommands, maxLoad = 3000, 64, 4000
	perHit := testLayout.CommandsPerHit(false)
	b := newBuffer(testLayout, Limits{MaxCommands: maxCommands, MaxLoad: maxLoad}, make([]window.Cursor, testLayout.Shards))
	if replay {
		b.replayed, b.maxBytes = 2*messages, 1<<20
		b.setWhole()
	}
	sent := make([]int64, testLayout.Shards)
	rejects := 0
	history := make([][]hit.Hit, 2*messages+1) // by sequence
	missing := uint64(0)
	random := rand.New(rand.NewPCG(1, 2))

	var reader sync.WaitGroup
	done := make(chan struct{})
	reader.Go(func() {
		defer close(done)
		seq := uint64(0)
		for range messages {
			gap := uint64(random.IntN(2))
			missing += gap
			seq += 1 + gap
			m := testMessage(seq)
			for range random.IntN(4) * random.IntN(12) { // 0 to 33: some alone are more than maxCommands
				m.hits = append(m.hits, testHits(random.IntN(200))...)
			}
			for i := range m.hits {
				m.hits[i].N = 1 + random.Int64N(3)
				sent[testLayout.ShardOf(m.hits[i].Hash)] += m.hits[i].N
			}
			history[seq] = m.hits
			if random.IntN(10) == 0 && !replay { // rejects of a replay are stored already
				m.rejects = []hit.Reject{{Reason: hit.BadKey, Detail: "bad", Body: []byte("{}")}}
				rejects++
			}
			if err := b.add("HITS", m); err != nil {
				t.Error(err)
				return
			}
		}
	})

	var got struct {
		hits               [4]int64
		messages, rejects  int
		seq, discarded     uint64
		largest, unlimited int
		fullest            int // bytes
	}
	take := func() {
		l := b.drain()
		if l.seq < got.seq || l.messages > 0 && l.seq == got.seq {
			t.Errorf("a load ends at %d after one that ended at %d", l.seq, got.seq)
		}
		before := got.seq
		got.seq = l.seq
		got.fullest = max(got.fullest, l.batch.Bytes())
		got.messages += l.messages
		got.rejects += len(l.rejects)
		got.discarded += l.discarded
		if (l.incompleteBefore > 0) != (l.discarded > 0) || l.discarded > 0 && l.incompleteBefore != testStored+1 {
			t.Errorf("%d discarded, incomplete before %d", l.discarded, l.incompleteBefore)
		}
		for shard := range got.hits {
			cells := l.batch.Shard(shard)
			got.hits[shard] += cells.Hits()
			if !replay || cells.Commands() <= maxCommands {
				got.largest = max(got.largest, cells.Commands())
				continue
			}
			got.unlimited++
			alone := window.NewBatch(testLayout)
			first := history[before+1]
			if first == nil { // discarded
				first = history[before+2]
			}
			for _, h := range first {
				alone.Add(h.Counter, h.Hash, h.At, testStored, h.N)
			}
			if cells.Commands() != alone.Shard(shard).Commands() {
				t.Errorf("a transaction has %d commands, and the first message of its load alone %d", cells.Commands(), alone.Shard(shard).Commands())
			}
		}
		b.recycle(l)
	}
	for reading := true; reading; {
		select {
		case <-b.full:
			take()
		case <-done:
			reading = false
		}
	}
	reader.Wait()
	take()
	take() // there is nothing left
	if got.messages != messages || got.seq != messages+missing || got.rejects != rejects || got.discarded != missing || missing == 0 {
		t.Errorf("%d messages up to %d, %d rejects, %d discarded; want %d, %d rejects and %d discarded", got.messages, got.seq, got.rejects, got.discarded, messages, rejects, missing)
	}
	if !slices.Equal(got.hits[:], sent) {
		t.Errorf("hits by shard %v, want %v", got.hits, sent)
	}
	// One message more may pass the bound of memory.
	if most := 33 * 200; !replay && (got.fullest < maxLoad || got.fullest > maxLoad+most) {
		t.Errorf("the largest load takes %d bytes; %d are allowed and should be used", got.fullest, maxLoad)
	}
	if !replay {
		return
	}
	if got.largest < maxCommands-2*perHit {
		t.Errorf("the largest transaction within the limit has %d commands; %d are allowed and should be used", got.largest, maxCommands)
	}
	if got.unlimited == 0 {
		t.Error("no message alone was too large: the test does not test it")
	}
}

func TestBufferBlocksWhileBothHalvesAreFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBuffer(testLayout, Limits{MaxCommands: 1000, MaxLoad: 1}, make([]window.Cursor, testLayout.Shards)) // a message a half
		added := make(chan error, 1)
		add := func(seq uint64) {
			added <- b.add("HITS", testMessage(seq, int(seq)*4, int(seq)*4+1, int(seq)*4+2, int(seq)*4+3))
		}
		blocked := func(want bool) {
			t.Helper()
			synctest.Wait()
			_, _, waiting := b.position()
			if waiting != want || (len(added) == 0) != want {
				t.Fatalf("waiting %v, %d returned; want waiting: %v", waiting, len(added), want)
			}
			if !want && <-added != nil {
				t.Fatal("add reports a closed buffer")
			}
		}
		go add(1)
		blocked(false)
		go add(2)
		blocked(true)
		<-b.full // it asks for a flush
		first := b.drain()
		blocked(false)
		go add(3)
		blocked(true) // one half is being committed, the other is full
		b.recycle(first)
		blocked(true) // room is made by taking, not by giving
		if second := b.drain(); second.seq != 2 || second.messages != 1 {
			t.Fatalf("the second load has %d messages up to %d", second.messages, second.seq)
		}
		blocked(false)
		go add(4)
		blocked(true)
		b.close()
		if err := <-added; !errors.Is(err, errClosed) {
			t.Errorf("add took a message after close: %v", err)
		}
		if err := b.add("HITS", testMessage(5)); !errors.Is(err, errClosed) {
			t.Errorf("add took a message after close: %v", err)
		}
		if seq, _, _ := b.position(); seq != 3 {
			t.Errorf("the place is %d, want 3", seq)
		}
	})
}

// A shard that is further on skips what it has; rejects that were published before the session are not again.
func TestBufferSkipsWhatIsApplied(t *testing.T) {
	t.Parallel()
	m := testMessage(10, 0, 1, 2, 3, 4, 5, 6, 7)
	m.rejects = []hit.Reject{{Reason: hit.BadKey, Detail: "bad", Body: []byte("{}")}}
	perShard := make([]int64, testLayout.Shards)
	for _, h := range m.hits {
		perShard[testLayout.ShardOf(h.Hash)]++
	}
	for _, test := range []struct {
		applied []uint64
		rejects int
	}{
		{[]uint64{9, 9, 9, 9}, 1},
		{[]uint64{0, 9, 3, 9}, 1},
		{[]uint64{10, 9, 9, 9}, 0},
		{[]uint64{9, 11, 10, 0}, 0},
		{[]uint64{10, 10, 10, 10}, 0},
	} {
		b := newBuffer(testLayout, testLimits(1000), cursorsAt(test.applied))
		b.skip(0, 9, 9, 0, 0)
		require.NoError(t, b.add("HITS", m))
		l := b.drain()
		for shard, applied := range test.applied {
			want := perShard[shard]
			if applied >= 10 {
				want = 0
			}
			if got := l.batch.Shard(shard).Hits(); got != want {
				t.Errorf("applied %v: shard %d has %d hits, want %d", test.applied, shard, got, want)
			}
		}
		if len(l.rejects) != test.rejects || l.seq != 10 || l.messages != 1 {
			t.Errorf("applied %v: %d rejects, %d messages up to %d", test.applied, len(l.rejects), l.messages, l.seq)
		}
	}
}

// Rejects are bounded by the memory that they take, not by their bodies alone.
func TestBufferBoundsRejects(t *testing.T) {
	t.Parallel()
	b := newBuffer(testLayout, testLimits(1000), make([]window.Cursor, testLayout.Shards))
	m := testMessage(1)
	m.rejects = slices.Repeat([]hit.Reject{{Reason: hit.BadJSON}}, 10_000)
	for ; b.fits(m); m.seq++ {
		if m.seq > 100 {
			t.Fatal("a million rejects without a body are taken at once")
		}
		b.add("HITS", m)
	}
	b.recycle(b.drain())
	if !b.fits(m) {
		t.Error("an empty half takes no message")
	}
}

// A counter that is hit again and again takes no more memory, but its sum has an end.
func TestBufferBoundsTheSum(t *testing.T) {
	t.Parallel()
	b := newBuffer(testLayout, testLimits(1000), make([]window.Cursor, testLayout.Shards))
	m := testMessage(1, 7)
	m.hits[0].N = 1_000_000 * hit.MaxN // as much as a message can add, with the largest INGEST_MAX_HITS
	cells := b.filling.batch.Shard(testLayout.ShardOf(m.hits[0].Hash))
	for ; b.fits(m); m.seq++ {
		b.add("HITS", m)
		if m.seq > 8 || cells.Hits() < 0 {
			t.Fatalf("after %d messages the sum is %d", m.seq, cells.Hits())
		}
	}
	if cells.Hits() < maxSum {
		t.Errorf("the half is full at a sum of %d", cells.Hits())
	}
	b.recycle(b.drain())
	if !b.fits(m) {
		t.Error("an empty half takes no message")
	}
}

// cursorsAt are cursors of shards at these sequences.
func cursorsAt(applied []uint64) (cursors []window.Cursor) {
	for _, seq := range applied {
		cursors = append(cursors, window.Cursor{Seq: seq})
	}
	return cursors
}

func testLimits(maxCommands int) Limits {
	return Limits{MaxCommands: maxCommands, MaxLoad: 48 << 20}
}

// A place moves over a deleted tail only if nothing has come meanwhile, and never back.
func TestBufferPassesADeletedTailOnlyIfNothingCame(t *testing.T) {
	t.Parallel()
	b := newBuffer(testLayout, testLimits(1000), make([]window.Cursor, testLayout.Shards))
	require.NoError(t, b.add("HITS", testMessage(1)))
	b.skip(0, 5, 5, testStored*1e6, testStored) // message 1 has come
	if seq, _, _ := b.position(); seq != 1 {
		t.Errorf("the place is %d, want 1", seq)
	}
	b.skip(1, 5, 4, (testStored-1)*1e6, testStored+7)
	seq, stored, _ := b.position()
	if l := b.filling; seq != 5 || stored != (testStored-1)*1e6 || l.latest != testStored*1e6 || l.discarded != 4 || l.incompleteBefore != testStored+7 {
		t.Errorf("the place is %d, stored %d; %d discarded before %d", seq, stored, l.discarded, l.incompleteBefore)
	}
	if err := b.add("HITS", testMessage(5)); !errors.Is(err, errGap) {
		t.Errorf("a message that was passed is taken: %v", err)
	}
	if err := b.add("HITS", testMessage(6)); err != nil || b.filling.discarded != 4 {
		t.Errorf("the message after those that were passed: %v, %d discarded", err, b.filling.discarded)
	}
}
