package bench_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// sizing is what a namespace with the default tiers is to count. The hits of counters are Zipf-distributed
// or uniform.
type sizing struct {
	counters int
	zipf     float64 // the exponent; 0: evenly
	rate     float64 // hits per second
	shards   int
}

// What a counter or a load costs, by the measurements below.
const (
	flushSeconds   = 0.25
	perShardCommit = 18      // commands of a shard's transaction, without the counters'
	commandMicros  = 3.5     // of Redis per command, its append-only file included
	hitMicros      = 0.4     // of a worker per hit, 100 to a message
	sendMicros     = 1.8     // of a worker per command
	streamRate     = 125_000 // hits per second of a stream, so that it stays far from its end
	hashBytes      = 180     // of a hash with a field, its place and its expiry included
	logBytes       = 210     // of a log without hits; its places in Redis's tables, which double, are 16 to 32 of them
	hitBytes       = 3.5     // of a hit in a log, with what the allocator rounds up
	nameBytes      = 110
	foldedLogBytes = 500 // of a log that is folded again and again
)

// share calls each with groups of counters that have about the same share of the hits.
func (s sizing) share(each func(counters, share float64)) {
	if s.zipf == 0 {
		each(float64(s.counters), 1/float64(s.counters))
		return
	}
	group := func(k int) int { return min(max(1, k/100), s.counters-k+1) }
	sum := 0.0
	for k := 1; k <= s.counters; k += group(k) {
		sum += float64(group(k)) * math.Pow(float64(k)+float64(group(k)-1)/2, -s.zipf)
	}
	for k := 1; k <= s.counters; k += group(k) {
		each(float64(group(k)), math.Pow(float64(k)+float64(group(k)-1)/2, -s.zipf)/sum)
	}
}

// distinct is how many counters a number of hits falls on.
func (s sizing) distinct(hits float64) (n float64) {
	s.share(func(counters, share float64) { n += counters * hit(hits*share) })
	return n
}

// commandsPerHit is what Redis has to do for a hit that comes in a load of n. Each counter of a load needs an
// append, each log a SET once, and a fold of some ten commands per eighty appends; and each shard the cursor,
// the sum of all hits, and what a transaction is made of.
func (s sizing) commandsPerHit(load float64) float64 {
	commands := 0.0
	logs, _ := window.Layout{Tiers: defaultTiers, Shards: 1}.SparseTier()
	s.share(func(counters, share float64) {
		commands += counters * (1.125*hit(load*share) + renewed(s.rate*share, logs)*load/s.rate)
	})
	return (commands + float64(s.shards)*perShardCommit) / load
}

// hit is the chance that a counter has a hit if that many are to be expected.
func hit(expected float64) float64 { return 1 - math.Exp(-expected) }

// renewed is how many hashes or logs a counter begins per second.
func renewed(perSecond float64, t window.Tier) float64 {
	epoch := epochSeconds(t)
	return hit(perSecond*epoch) / epoch
}

// epochSeconds is how much time a hash or a log holds.
func epochSeconds(t window.Tier) float64 { return float64(t.EpochMillis()) / 1000 }

// bytesOf is the mean of a counter whose hits come evenly, at a rate per second. A hash lives from its first
// hit until no window reaches back to it, a grace and a jitter: until then all of its cells are there.
func bytesOf(tiers window.Tiers, rate float64) float64 {
	if logs, ok := rareLogs(tiers, rate); ok {
		return bytesOfLogs(logs, rate)
	}
	longest := tiers[len(tiers)-1]
	sum := nameBytes * min(1, rate*epochSeconds(longest))
	for _, t := range tiers {
		cell, epoch, w := t.Cell.Seconds(), epochSeconds(t), t.Window.Seconds()
		after := w + min(w/4, 300) + min(w/4, epoch)/2
		some := min(1, rate*epoch)
		hashes := some * (after/epoch + max(0.5, 1-1/(2*max(rate*epoch, 0.5))))
		fields := min(1, rate*cell) * (after + epoch/2) / cell
		sum += hashes*hashBytes + max(0, fields-hashes)*fieldBytes(rate*cell)
	}
	return sum
}

// rareLogs returns the tier of the sparse logs if a counter with this rate of hits per second has some.
func rareLogs(tiers window.Tiers, rate float64) (logs window.Tier, ok bool) {
	logs, ok = window.Layout{Tiers: tiers, Shards: 1}.SparseTier()
	return logs, ok && rate*epochSeconds(logs) < window.MaxLogBytes/4
}

func bytesOfLogs(logs window.Tier, rate float64) float64 {
	epoch, w := epochSeconds(logs), logs.Window.Seconds()
	some := min(1, rate*epoch)
	after := w + 300 + w/8
	alive := some * (after/epoch + max(0.5, 1-1/(2*max(rate*epoch, 0.5))))
	hits := rate * (after + epoch/2)
	return nameBytes*some + alive*logBytes + hits*hitBytes
}

// fieldBytes is what a further field takes: its number, its count, and what the allocator rounds up.
func fieldBytes(count float64) float64 {
	switch {
	case count < 128:
		return 4.8
	case count < 4096:
		return 5.8
	}
	return 6.8
}

func (s sizing) bytes() (sum float64) {
	s.share(func(counters, share float64) {
		sum += counters * bytesOf(defaultTiers, share*s.rate)
		if _, ok := rareLogs(defaultTiers, share*s.rate); !ok {
			sum += counters * foldedLogBytes
		}
	})
	return sum
}

const (
	sizingPage  = "../../docs/scaling.md"
	sizingBegin = "<!-- sizing: begin (SIZING=write rewrites from here) -->\n\n"
	sizingEnd   = "\n<!-- sizing: end -->"
	sizingHead  = "| counters | hits/s | streams | commands per hit | cores of workers | cores of Redis |" +
		" masters, at half load | memory of Redis |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n"
)

// The table of the docs is what the formula yields. SIZING=write writes it.
func TestSizingTableIsThatOfTheDocs(t *testing.T) {
	table := sizingHead
	for _, counters := range []int{100_000, 1_000_000, 10_000_000} {
		for _, rate := range []float64{10_000, 100_000, 1_000_000} {
			s := sizing{counters: counters, zipf: 1.1, rate: rate, shards: shards}
			streams := math.Ceil(rate / streamRate)
			commands := s.commandsPerHit(rate * flushSeconds / streams)
			redis := rate * commands * commandMicros / 1e6
			table += fmt.Sprintf("| %s | %s | %.0f | %.2f | %.1f | %.1f | %.0f | %.1f GB |\n",
				human.Thousands(float64(counters)), human.Thousands(rate), streams, commands,
				rate*(hitMicros+sendMicros*commands)/1e6, redis, math.Ceil(2*redis), s.bytes()/1e9)
		}
	}
	page, err := os.ReadFile(sizingPage)
	require.NoError(t, err)
	text, err := replaceBetween(string(page), sizingBegin, sizingEnd, table)
	require.NoErrorf(t, err, "%s", sizingPage)
	if os.Getenv("SIZING") == "write" {
		require.NoError(t, os.WriteFile(sizingPage, []byte(text), 0o644))
		return
	}
	if text != string(page) {
		t.Errorf("%s: with SIZING=write this test writes the table of the formula:\n%s", sizingPage, table)
	}
}

// What the formula yields for Redis's memory is what counters take there.
func checkSizingOfMemory(t *testing.T, r *rig) {
	for _, c := range []struct {
		tiers   string
		periods []int64 // of hits
	}{
		{window.DefaultTiers, []int64{30 * 24 * hour, 24 * hour, 8 * hour, hour, hour / 1000, second}},
		{"1d/5y", []int64{30 * 24 * hour, 24 * hour, hour / 1000}},
	} {
		for _, period := range c.periods {
			// Those with few cells have to be many, so that what Redis takes for itself does not count.
			tiers := tiersOf(c.tiers)
			longest := tiers[len(tiers)-1].Window.Milliseconds()
			counters := min(5000, max(50, 50_000*period/longest))
			got := r.tierBytes(t, c.tiers, rate{period: period}, int(counters))
			what := fmt.Sprintf("bytes of a counter in %s with a hit per %d ms", c.tiers, period)
			compare(t, what, got, bytesOf(tiers, 1000/float64(period)))
		}
	}
}

// compare allows a fifth.
func compare(t *testing.T, what string, got, want float64) {
	t.Helper()
	t.Logf("%s: %.3f, by the formula %.3f", what, got, want)
	if math.Abs(got/want-1) > 0.2 {
		t.Errorf("%s: %.3f, by the formula %.3f", what, got, want)
	}
}

// What the formula yields for Redis's commands is what a worker sends: at first with what new counters cost,
// since no key is there yet. All counters are rare then, so they have logs, unless the tiers allow none.
func checkSizingOfCommands(t *testing.T, r *rig) {
	for _, tiers := range []string{window.DefaultTiers, "1s/12m,1m/15m"} {
		t.Run(tiers, func(t *testing.T) { r.checkCommandsOf(t, tiersOf(tiers)) })
	}
}

func (r *rig) checkCommandsOf(t *testing.T, tiers window.Tiers) {
	w := workload{counters: 20_000, zipf: 1.1}
	s := sizing{counters: w.counters, zipf: w.zipf, rate: 4_000, shards: shards}
	r.empty(t)
	r.fill(t, "LIVE", w, 1, 1)
	worker := r.startIngest(t, "LIVE", "TIERS="+tiers.String())
	ctx, cancel := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() { r.publishAt(t, ctx, w, s.rate, 1) })
	defer publishing.Wait()
	defer cancel()
	reach := func(hits int) (counted int) {
		stack.Eventually(t, fmt.Sprint(hits, " hits"), func() (bool, string) {
			n, err := hitsCounted(worker)
			require.NoError(t, err)
			counted = n
			return n >= hits, fmt.Sprint(n)
		})
		return counted
	}
	before := reach(8_000)
	r.resetStats(t)
	after := reach(before + 20_000)
	calls := callsOf(t, r.rdb)
	hits, commits := float64(after-before), float64(calls["persist"]) // snapshots have EXEC, too
	loads := commits / float64(s.shards)
	touched := s.distinct(hits/loads) * loads
	fresh := s.distinct(float64(after)) - s.distinct(float64(before))
	// Each transaction has an increment of its cursor, and of the sum of all hits one per tier; a quarter of
	// the loads lie in two cells of a second.
	sum := (float64(len(tiers)) + 0.25) * commits
	increments := float64(calls["hincrby"]) - commits
	if _, ok := rareLogs(tiers, 0); ok {
		compare(t, "increments of the sum per hit", increments/hits, sum/hits)
		compare(t, "appends per hit", float64(calls["append"])/hits, touched/hits)
		// A summary is read and then set, and each transaction reads the last erasure.
		summaries := float64(calls["get"]) - commits
		compare(t, "new logs per hit", (float64(calls["set"])-summaries)/hits, fresh/hits)
		return
	}
	perTier := float64(len(tiers)) / hits
	compare(t, "increments per hit", increments/hits, sum/hits+touched*perTier)
	// Each transaction sets the expiries of the hashes that it increments, and of the names that it lists.
	expiries := float64(len(tiers))*commits/hits + touched*perTier
	compare(t, "expiries per hit", float64(calls["expireat"])/hits, expiries)
}

var defaultTiers = tiersOf(window.DefaultTiers)
