package commit

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

func mustParse(t testing.TB, text string) window.Tiers {
	t.Helper()
	tiers, err := window.ParseTiers(text)
	require.NoError(t, err)
	return tiers
}

// genTiers draws tiers with one hash or many per window.
func genTiers(t *testing.T) *rapid.Generator[window.Tiers] {
	return rapid.SampledFrom([]window.Tiers{
		mustParse(t, window.DefaultTiers), mustParse(t, "1s/1h,1m/1d,1h/92d"),
		mustParse(t, "1s/1m,15m/1d").Cut(7), mustParse(t, "1s/1h,1m/1d").Cut(1 << 21),
	})
}

// batchModel is what a transaction on one shard is to send, by key.
type batchModel struct {
	hits     int64
	cells    map[modelCell]int64
	expiries map[string]int64
	names    map[string]uint64 // by set and counter: the log whose size tells that it is listed
	top      map[window.Segment]map[string]int64
	expired  bool // a cell of all hits is left out, and those of counters are not
}

type modelCell struct {
	key   string
	field int64
}

// add adds hits of a counter to what is sent at a moment (Unix seconds). The sum of all hits may leave them
// out.
func (m *batchModel) add(l window.Layout, counter string, at, stored, n, now int64, excluded bool) {
	m.hits += n
	hash := window.HashCounter([]byte(counter))
	for i, tier := range l.Tiers {
		epoch, field := tier.EpochAndField(tier.CellAt(at))
		deadline := tier.Deadline(epoch, hash)
		if deadline*1000 <= stored || deadline <= now {
			continue
		}
		switch all := tier.Deadline(epoch, 0); {
		case excluded:
		case all > now:
			key := fmt.Sprintf("ns:{%d}:h:%s:%d:", l.ShardOf(hash), human.FormatDuration(tier.Cell), epoch)
			m.cells[modelCell{key, field}] += n
			m.expiries[key] = all
		default:
			m.expired = true
		}
		key := fmt.Sprintf("ns:{%d}:h:%s:%d:%s", l.ShardOf(hash), human.FormatDuration(tier.Cell), epoch, counter)
		m.cells[modelCell{key, field}] += n
		m.expiries[key] = deadline
		if i == len(l.Tiers)-1 {
			t := l.NamesTier()
			of := t.EpochAt(tier.EpochStart(epoch))
			m.names[fmt.Sprint(t.NamesOf(of), " ", of, " ", counter)] = logID(hash, of)
		}
		if l.HasSummaries(i) {
			s := window.Segment{Tier: i, Number: window.FloorDiv(at, tier.SegmentMillis())}
			if m.top[s] == nil {
				m.top[s] = map[string]int64{}
			}
			m.top[s][counter] += n
		}
	}
}

// What a transaction sends is worked out from the batch and Redis's clock alone:
// every cell that has not expired, the expiry of every hash after its last increment, the names that are not
// known to be listed, and the hits of each segment; and all of these cells once more, added up.
// The batch foretells how many commands that is at most.
func TestChangesOfABatch(t *testing.T) {
	t.Parallel()
	outer, batches := t, map[string]*window.Batch{} // batches and changes are used again, as a writer does
	var c changes
	rapid.Check(t, func(t *rapid.T) {
		l := window.Layout{Tiers: genTiers(outer).Draw(t, "tiers"), Shards: 8}
		batch := batches[fmt.Sprintf("%+v", l)]
		if batch == nil {
			batch = window.NewBatch(l)
			batches[fmt.Sprintf("%+v", l)] = batch
		}
		known := make([]sizeMemory, l.Shards)
		stored := rapid.Int64Range(1_763_000_000_000, 1_763_000_100_000).Draw(t, "stored")
		// The finest hashes live so long.
		genLater := rapid.OneOf(rapid.Int64Range(0, 250), rapid.SampledFrom([]int64{0, 4000, 90_000, 80 * 86_400}))
		genAge := rapid.OneOf(rapid.Int64Range(-10_000, 10_000), rapid.Int64Range(0, 40*86_400_000))
		for range rapid.IntRange(1, 3).Draw(t, "transactions") {
			later := genLater.Draw(t, "later")
			now := stored/1000 + later
			models := make([]batchModel, l.Shards)
			for i := range models {
				models[i] = batchModel{cells: map[modelCell]int64{}, expiries: map[string]int64{}, names: map[string]uint64{},
					top: map[window.Segment]map[string]int64{}}
			}
			batch.Reset()
			most := rapid.SampledFrom([]int{20, 0}).Draw(t, "counters")
			for range rapid.IntRange(0, 150).Draw(t, "hits") {
				counter := fmt.Sprint(rapid.IntRange(0, most).Draw(t, "counter"))
				at, n := stored-genAge.Draw(t, "age"), rapid.Int64Range(1, 1<<31-1).Draw(t, "n")
				hash := window.HashCounter([]byte(counter))
				excluded := rapid.IntRange(0, 3).Draw(t, "excluded") == 3
				if excluded {
					batch.AddExcluded([]byte(counter), hash, at, stored, n)
				} else {
					batch.Add([]byte(counter), hash, at, stored, n)
				}
				models[l.ShardOf(hash)].add(l, counter, at, stored, n, now, excluded)
			}
			for shard, m := range models {
				s := batch.Shard(shard)
				c.compute(s, shard, schema.Keys{Namespace: "ns"}, &known[shard], &registerMemory{}, now)
				commands := len(c.increments) + len(m.expiries) + len(m.top) + 2*len(c.names)
				fresh := later == 0 && len(c.listed) == len(m.names) && !m.expired
				if s.Commands() < commands || fresh && s.Commands() > commands && s.IsExact() {
					t.Fatalf("shard %d says %d commands (exact: %v) and has %d", shard, s.Commands(), s.IsExact(), commands)
				}
				checkChanges(t, &c, m, &known[shard])
				for _, id := range c.listed {
					known[shard].add(id, 0)
				}
				if s.Recount(); s.Hits() != m.hits || s.Commands() < commands || fresh && s.Commands() != commands {
					t.Fatalf("shard %d says %d commands and %d hits when it has counted them again, and has %d and %d",
						shard, s.Commands(), s.Hits(), commands, m.hits)
				}
			}
		}
	})
}

// checkChanges compares changes with what they are to be.
func checkChanges(t *rapid.T, c *changes, m batchModel, known *sizeMemory) {
	cells, expiries := map[modelCell]int64{}, map[string]int64{}
	for _, inc := range c.increments {
		cells[modelCell{inc.key, inc.field}] = inc.n
		if expiries[inc.key] > 0 {
			t.Fatalf("%s has an increment after its expiry", inc.key)
		}
		if inc.deadline > 0 {
			expiries[inc.key] = inc.deadline
		}
	}
	if !maps.Equal(cells, m.cells) || len(cells) != len(c.increments) {
		t.Fatalf("increments %v, want %v", c.increments, m.cells)
	}
	if !maps.Equal(expiries, m.expiries) {
		t.Fatalf("expiries %v, want %v", expiries, m.expiries)
	}
	names, listed := map[string]int{}, map[string]int{}
	for name, id := range m.names {
		if _, is := known.size(id); !is {
			set, rest, _ := strings.Cut(name, " ")
			_, counter, _ := strings.Cut(rest, " ")
			names[set+" "+counter]++ // a set can be of several epochs
		}
	}
	for set, inSet := range c.names {
		for _, name := range inSet {
			listed[fmt.Sprint(set, " ", name)]++
		}
	}
	if !maps.Equal(listed, names) || len(c.segments) != len(m.top) {
		t.Fatalf("names %v, want %v; %d segments, want %d", listed, names, len(c.segments), len(m.top))
	}
	for s, want := range m.top {
		got := map[string]int64{}
		for _, l := range c.hits(s) {
			got[l.Name] += l.Count
		}
		if !maps.Equal(got, want) || len(got) != len(c.hits(s)) {
			t.Fatalf("segment %+v has %v, want %v", s, c.hits(s), want)
		}
	}
}

// BenchmarkOrder coalesces the hits of one counter, and works out what a commit of them changes, once per
// 50,000; ns/op is per hit. What a hit costs must not depend on the order of times: in-order; two logs side
// by side; one hit in 1,000 half the span late; and times that are drawn.
func BenchmarkOrder(b *testing.B) {
	const hits, flush = 300_000, 50_000
	const stored = 1_763_683_200_000
	l, name := window.Layout{Tiers: mustParse(b, window.DefaultTiers), Shards: 1}, []byte("api-1")
	hash := window.HashCounter(name)
	for _, span := range []time.Duration{30 * 24 * time.Hour, time.Minute} {
		rising := func(i int) int64 { return stored - span.Milliseconds() + int64(i)*span.Milliseconds()/hits }
		random := rand.New(rand.NewPCG(1, 2))
		for _, order := range []struct {
			name string
			at   func(i int) int64
		}{
			{"in-order", rising},
			{"two-logs", func(i int) int64 { return rising(i/2 + i%2*hits/2) }},
			{"late", func(i int) int64 { return rising(i) - int64(i%1000/999)*span.Milliseconds()/2 }},
			{"drawn", func(int) int64 { return rising(random.IntN(hits)) }},
		} {
			times := make([]int64, hits)
			for i := range times {
				times[i] = order.at(i)
			}
			b.Run("span="+human.FormatDuration(span)+"/"+order.name, func(b *testing.B) {
				batch, c := window.NewBatch(l), changes{}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					batch.Add(name, hash, times[i%hits], stored, 1)
					if i%flush == flush-1 {
						c.compute(batch.Shard(0), 0, schema.Keys{Namespace: "bench"}, &sizeMemory{}, &registerMemory{}, stored/1000)
						batch.Reset()
					}
				}
			})
		}
	}
}
