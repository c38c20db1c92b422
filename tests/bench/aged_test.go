package bench_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// An aged namespace is one whose hashes and logs are as full as after weeks. The program that is measured
// makes it: it counts the hits of a few counters, and their keys are then copied for all others. So whatever
// layout it writes is aged as that program leaves it.

// age is how a counter has been hit for weeks.
type age string

const (
	busy age = "busy" // a hit per load: hashes with hits in every cell
	rare age = "rare" // a hit per day: a short log
)

const (
	agedCounters = 1000 // of a load
	agedLoads    = 100
	// models are the counters that the program itself ages. Each has other cells, deadlines and sizes.
	models = 64
	// betweenLoads is longer than the default flush interval, so no load has two hits of a counter.
	betweenLoads = 300 * time.Millisecond
)

// agedRow is what counters of an age cost the programs in a directory; of a load unless it counts a backlog.
type agedRow struct {
	sample
	age      age
	programs programs
	streams  int
	batched  bool // of a backlog
	Rare     *sample
	Before   *sample // the same, by the programs that BEFORE names
}

// programs are those in a directory; empty: as all other measurements.
type programs string

// byPrograms calls row for the programs that are measured, and for those to compare them with, if BEFORE has
// their directory.
func byPrograms[T interface{ Itself() *sample }](row func(p programs, before *sample) T) (out []T) {
	var before *sample
	if dir := os.Getenv("BEFORE"); dir != "" {
		first := row(programs(dir), nil)
		before = first.Itself()
		before.name += ", before"
		out = append(out, first)
	}
	return append(out, row("", before))
}

// use lets the rest of a test start the programs.
func (p programs) use(t *testing.T) {
	t.Helper()
	if p != "" {
		t.Setenv("TALLYROLL_BIN", string(p))
	}
}

// measureAged lets workers count loads of one hit per counter, from one stream and from several.
func measureAged(t *testing.T, r *rig, o options) []*agedRow {
	var all []*agedRow
	for _, of := range []struct {
		name    string
		age     age
		streams int
	}{{"busy", busy, 1}, {"rare", rare, 1}, {"busy, the same counters in 8 streams", busy, 8}} {
		all = append(all, byPrograms(func(p programs, before *sample) *agedRow {
			return &agedRow{sample: sample{part: "aged", name: of.name}, age: of.age, streams: of.streams,
				programs: p, Before: before}
		})...)
	}
	all = chosen(o, all...)
	inTurns(t, o, all, func(t *testing.T, a *agedRow, _ int) {
		a.programs.use(t)
		for figure, value := range r.countLoads(t, a, o.size(agedCounters), o.size(agedLoads)) {
			a.add(figure, value)
		}
	})
	return all
}

// countLoads measures a worker that has counted all counters before. A busy counter has a hit in every load
// of each stream, and a rare one in one load. Figures are per counter and load.
func (r *rig) countLoads(t *testing.T, a *agedRow, perLoad, loads int) figures {
	t.Helper()
	r.empty(t)
	counters := perLoad
	if a.age == rare {
		counters *= loads
	}
	var streams []*stored
	prefix := fmt.Sprintf("AGED%d_", a.streams)
	for i := range a.streams {
		streams = append(streams, r.fill(t, fmt.Sprint(prefix, i), workloads[0], 1, 1))
	}
	r.ageCounters(t, prefix+"*", streams, a.age, counters)
	f := &loader{r: r, worker: r.startIngest(t, prefix+"*")}
	for range 6 { // the worker learns which keys exist, and how large they are
		for first := 0; first < counters; first += 10 * perLoad {
			f.load(t, streams, first, min(10*perLoad, counters-first))
			f.settle(t)
		}
		if a.age == rare {
			break
		}
	}
	conflicts, commits := f.metric(t, "cursor_conflicts_total"), f.metric(t, "commit_hits_count")
	before := f.published
	end := r.begin(t, r.redisCPU(t), f.worker.PID())
	for n := range loads {
		f.load(t, streams, n*perLoad%counters, perLoad)
		time.Sleep(betweenLoads)
	}
	f.settle(t)
	out := end(f.published-before, observers...)
	commits = f.metric(t, "commit_hits_count") - commits
	out["conflicts"] = float64(f.metric(t, "cursor_conflicts_total")-conflicts) / float64(commits)
	out["log"], out["longest log"] = r.logSizes(t, counters)
	delete(out, "rate") // the pauses decide
	require.Equal(t, 0, f.worker.Stop(), "how the worker ended")
	return out
}

// logSizes returns the mean and the largest length of the logs of the first counters, in bytes.
func (r *rig) logSizes(t *testing.T, counters int) (mean, largest float64) {
	t.Helper()
	layout := window.Layout{Tiers: defaultTiers, Shards: shards}
	logs, _ := layout.SparseTier()
	keys := schema.NewStore(r.rdb, namespace).Keys
	epoch, sum, n := logs.EpochAt(time.Now().UnixMilli()), 0.0, 0.0
	lengths, err := r.rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range counters {
			name := counterName(i)
			p.StrLen(t.Context(), keys.Hash(window.CellHash{Shard: shardOf(name), Counter: name, Tier: logs, Epoch: epoch}))
		}
		return nil
	})
	require.NoError(t, err)
	for _, length := range lengths {
		if bytes := float64(length.(*redis.IntCmd).Val()); bytes > 0 {
			sum, n, largest = sum+bytes, n+1, max(largest, bytes)
		}
	}
	return sum / max(1, n), largest
}

// measureAgedRates lets a worker that has just started count a backlog of an aged namespace.
func measureAgedRates(t *testing.T, r *rig, o options) []*agedRow {
	var all []*agedRow
	for _, batched := range []bool{false, true} {
		var rares []*agedRow
		for _, age := range []age{rare, busy} {
			rows := byPrograms(func(p programs, before *sample) *agedRow {
				return &agedRow{sample: sample{part: "aged rate", name: string(age) + form(batched)}, age: age,
					programs: p, batched: batched, Before: before}
			})
			if age == rare {
				rares = rows
			}
			for i, a := range rows {
				a.Rare = &rares[i].sample
			}
			all = append(all, rows...)
		}
	}
	all = chosen(o, all...)
	inTurns(t, o, all, func(t *testing.T, a *agedRow, _ int) {
		a.programs.use(t)
		w := workloads[2]
		w.counters = o.size(w.counters)
		hits, size := w.single/2, 1
		if a.batched {
			hits, size = w.batched/2, batchSize
		}
		for figure, value := range r.countAgedBacklog(t, a.age, w, o.size(hits), size) {
			a.add(figure, value)
		}
	})
	return all
}

func (r *rig) countAgedBacklog(t *testing.T, age age, w workload, hits, size int) figures {
	t.Helper()
	r.empty(t)
	s := r.fill(t, "AGED", w, 1, 1)
	r.ageCounters(t, s.stream, []*stored{s}, age, w.counters)
	s = r.fill(t, s.stream, w, hits, size)
	r.dropCursors(t, s.stream)
	return r.backlog(t, []*stored{s}, s.stream, 1)
}

// dropCursors lets a worker count a stream from its beginning.
func (r *rig) dropCursors(t *testing.T, stream string) {
	t.Helper()
	var cursors []string
	for shard := range shards {
		cursors = append(cursors, cursorKey(stream, shard))
	}
	require.NoError(t, r.rdb.Del(t.Context(), cursors...).Err())
}

// loader publishes hits to a worker.
type loader struct {
	r         *rig
	worker    *stack.Service
	published int // hits

	body []byte // of the next message
	in   int    // hits of that message, each with its number
}

// add adds n hits of a counter, which count when they are stored if at (Unix milliseconds) is 0.
func (f *loader) add(i int, at, n int64) {
	f.body = fmt.Appendf(f.body, `{"key":%q,"n":%d`, counterName(i), n)
	if at != 0 {
		f.body = fmt.Appendf(f.body, `,"ts":%d`, at)
	}
	f.body = append(f.body, "}\n"...)
	f.in++
	f.published += int(n)
}

// send publishes what was added, if it is at least that much.
func (f *loader) send(t *testing.T, stream string, least int) {
	t.Helper()
	if f.in >= least {
		f.r.publish(t, strings.ToLower(stream)+".batch", f.body)
		f.body, f.in = nil, 0
	}
}

// load publishes one hit of each of some counters to each stream.
func (f *loader) load(t *testing.T, streams []*stored, first, counters int) {
	t.Helper()
	for _, s := range streams {
		for i := range counters {
			f.add(first+i, 0, 1)
			f.send(t, s.stream, batchSize)
		}
		f.send(t, s.stream, 1)
	}
}

// settle waits until all is counted.
func (f *loader) settle(t *testing.T) {
	t.Helper()
	awaitCounted(t, 5*time.Millisecond, "all hits", func() (bool, error) {
		n, err := hitsCounted(f.worker)
		return allOf(f.published, n, err)
	}, f.worker)
}

func (f *loader) metric(t *testing.T, name string) int {
	t.Helper()
	n, err := sumOfMetric(f.worker, "tallyroll_ingest_"+name)
	require.NoError(t, err)
	return n
}

// ageCounters makes counters look as if they had been hit for weeks, by a worker that reads streams.
func (r *rig) ageCounters(t *testing.T, named string, streams []*stored, age age, counters int) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	f := &loader{r: r, worker: r.startIngest(t, named, "INGEST_FLUSH_INTERVAL=10ms"), published: len(streams)}
	stream, few := streams[0].stream, min(models, counters)
	// A log takes what is not late, which is a cell for each second of the last minute at most. After a few
	// loads of any size come small ones, so that a log gets as full as it can.
	const widest = 48
	loads := 1
	if age == busy {
		f.fillCells(t, stream, few)
		loads = 40
	}
	for load := range loads {
		for i := range few {
			back := int64(4)
			if load == 0 {
				back = widest
			} else if load < 3 {
				back = 1 + random.Int64N(widest)
			}
			for now := time.Now().UnixMilli(); back > 0; back-- {
				f.add(i, now-back*second, 1+random.Int64N(4))
				f.send(t, stream, batchSize)
			}
		}
		f.send(t, stream, 1)
		f.settle(t)
	}
	require.Equal(t, 0, f.worker.Stop(), "how the worker ended")
	r.copyKeys(t, few, counters)
}

// fillCells counts late hits of the first counters in every cell of all tiers, as many as with one hit per
// load. Late hits go into the hashes.
func (f *loader) fillCells(t *testing.T, stream string, counters int) {
	t.Helper()
	const minutes, margin = 61 * second, 5 * second // no hit is too late when it is stored
	now := time.Now().UnixMilli()
	for i := range counters {
		period := betweenLoads.Milliseconds()
		heldCells(defaultTiers, window.HashCounter([]byte(counterName(i))), now-minutes, now+margin, period,
			func(at, n int64) {
				f.add(i, at, max(1, n))
				f.send(t, stream, batchSize)
			})
	}
	f.send(t, stream, 1)
	f.settle(t)
}

// copyKeys copies the keys of the first counters to those that follow, in turn. A key ends with its counter's
// name, and begins with the namespace and the shard.
func (r *rig) copyKeys(t *testing.T, few, counters int) {
	t.Helper()
	type copied struct {
		middle, value string
		expires       time.Duration
	}
	ctx := t.Context()
	of := map[string][]copied{}
	for _, key := range stack.Scan(t, r.rdb, namespace+":{*}:*") {
		place, name := strings.LastIndexByte(key, ':')+1, key[strings.LastIndexByte(key, ':')+1:]
		if !strings.HasPrefix(name, counterName(0)[:4]) {
			continue
		}
		value, err := r.rdb.Dump(ctx, key).Result()
		if errors.Is(err, redis.Nil) { // expired
			continue
		}
		require.NoError(t, err)
		expires, err := r.rdb.PTTL(ctx, key).Result()
		require.NoError(t, err)
		if expires > 0 {
			of[name] = append(of[name], copied{key[strings.IndexByte(key, '}'):place], value, expires})
		}
	}
	require.Len(t, of, few, "counters with keys")
	pipe := r.rdb.Pipeline()
	flush := func(least int) {
		if pipe.Len() < least {
			return
		}
		_, err := pipe.Exec(ctx)
		require.NoError(t, err)
	}
	for i := few; i < counters; i++ {
		name := counterName(i)
		begin := fmt.Sprintf("%s:{%d", namespace, shardOf(name))
		for _, k := range of[counterName(i%few)] {
			pipe.Restore(ctx, begin+k.middle+name, k.expires, k.value)
		}
		flush(1000)
	}
	flush(1)
}

// The measurements count right, also by the programs of another directory. All counters have a total in each
// window as if they had been hit for weeks: those whose keys are copied have that of their model.
func checkAged(t *testing.T, r *rig) {
	t.Setenv("BEFORE", os.Getenv("TALLYROLL_BIN")) // none unless it names a directory
	o := options{runs: 1, scale: 0.08, only: regexp.MustCompile("^aged rate/rare, one|^aged/busy(, before)?$")}
	rates := measureAgedRates(t, r, options{runs: 1, scale: 0.001, only: o.only})
	rows := measureAged(t, r, o)
	text := view{"Aged": rows, "AgedRates": rates}.tables(t, o)
	require.Contains(t, text, "| busy | ")
	require.Contains(t, text, "| rare, one hit a message | ")
	counters := o.size(agedCounters)
	require.Greater(t, counters, models)
	for _, a := range rows {
		require.InDelta(t, counters*o.size(agedLoads), a.last("hits"), 0, a.name)
		require.Greater(t, a.last("commands"), 0.9, a.name)
		require.Positive(t, a.last("log"), a.name)
	}
	reader := read.NewReader(schema.NewStore(r.rdb, namespace))
	for _, length := range []time.Duration{time.Hour, day, 30 * day} {
		var questions []window.Question
		for i := range counters {
			questions = append(questions, window.Question{Counter: counterName(i), Span: window.Last(length)})
		}
		out, err := reader.Answer(t.Context(), questions)
		require.NoError(t, err)
		for i, answer := range out.Answers {
			require.InEpsilon(t, length/betweenLoads, answer.Total, 0.1, "%s: %v", counterName(i), length)
			if i >= models {
				require.InDelta(t, out.Answers[i-models].Total, answer.Total, 100, "%s: %v", counterName(i), length)
			}
		}
	}
}
