package bench_test

import (
	"fmt"
	"testing"
	"time"

	"tallyroll/internal/platform/human"
)

// candidate is a way of counting a stream, and what was measured of it.
type candidate struct {
	sample
	kind    kind
	batched bool // reads the stream of batches
	fresh   bool // needs a stream that has just been filled
	measure func(t *testing.T, r *rig, s *stored) figures

	Ceiling, Base *sample // what it is compared with, of the same form
}

// kind is the class of a bar in testdata/benchmarks.svg.
type kind string

const (
	ceiling   kind = "ceiling"
	product   kind = "product"
	asWritten kind = "written"
	pipelines kind = "pipelined"
)

const (
	batchSize = 100
	multiHits = 2_000_000
	// box bounds one run of a technique: rates are compared, not amounts.
	box = 2 * time.Second
)

// worker is the candidate that counts by ingest with these settings.
func worker(part, name string, batched, fresh bool, env ...string) *candidate {
	return &candidate{
		sample: sample{part: part, name: name + form(batched)}, kind: product, batched: batched, fresh: fresh,
		measure: func(t *testing.T, r *rig, s *stored) figures {
			return r.tallyroll(t, []*stored{s}, s.stream, 1, env...)
		},
	}
}

// form is that of a stream's messages, in words.
func form(batched bool) string {
	if batched {
		return fmt.Sprintf(", %d hits a message", batchSize)
	}
	return ", one hit a message"
}

func candidates(part string, o options) (all []*candidate) {
	for _, batched := range []bool{false, true} {
		reader := &candidate{
			sample: sample{part: part, name: "ceiling: only read" + form(batched)}, kind: ceiling, batched: batched,
			measure: func(t *testing.T, r *rig, s *stored) figures { return r.ceiling(t, s) },
		}
		all = append(all, worker(part, "Tallyroll, 4 tiers", batched, true),
			worker(part, "Tallyroll, 1 tier (1m/1h)", batched, false, "TIERS=1m/1h"), reader)
	}
	limit := min(box, max(o.seconds(3), 100*time.Millisecond))
	for _, tech := range techniques {
		add := func(name string, kind kind, batch int) {
			all = append(all, &candidate{
				sample: sample{part: part, name: tech.name + name}, kind: kind,
				measure: func(t *testing.T, r *rig, s *stored) figures { return r.technique(t, s, tech, batch, limit) },
			})
		}
		add(", as written", asWritten, 0)
		add(", pipelined by 100", pipelines, 100)
	}
	for _, c := range all {
		first := 0
		if c.batched {
			first = 3
		}
		c.Base, c.Ceiling = &all[first].sample, &all[first+2].sample
	}
	return all
}

// comparison is one workload's results, in the order of the candidates.
type comparison struct {
	Title           string
	Single, Batched string // hits per run
	Plot            bool
	Rows            []*candidate
}

// measureThroughput lets the candidates count each workload.
func measureThroughput(t *testing.T, r *rig, o options) (out []comparison) {
	for _, w := range workloads {
		rows := chosen(o, candidates("throughput/"+w.name, o)...)
		if len(rows) == 0 {
			continue
		}
		countInTurns(t, r, o, rows, streamsOf(r, o, w))
		out = append(out, comparison{
			Title: w.title, Single: o.hits(w.single), Batched: o.hits(w.batched), Rows: rows,
			Plot: w.name == plotted && o.out != "",
		})
	}
	return out
}

// hits is a number of hits by the scale, as a table shows it.
func (o options) hits(n int) string { return human.Thousands(float64(o.size(n))) }

// countInTurns lets the candidates count in turns, each what stream returns for it.
func countInTurns(t *testing.T, r *rig, o options, all []*candidate, stream func(testing.TB, *candidate) *stored) {
	t.Helper()
	inTurns(t, o, all, func(t *testing.T, c *candidate, _ int) {
		for figure, value := range c.measure(t, r, stream(t, c)) {
			c.add(figure, value)
		}
		c.marked = c.marked || c.rounds["late"] != nil && c.last("late") > 0
	})
}

// streamsOf fills a workload's streams, one hit a message and batches, when a candidate needs them.
func streamsOf(r *rig, o options, w workload) func(testing.TB, *candidate) *stored {
	streams := make(map[bool]*stored)
	return func(t testing.TB, c *candidate) *stored {
		if s := streams[c.batched]; s == nil || c.fresh && !s.fresh() {
			name, hits, size := "ONE", w.single, 1
			if c.batched {
				name, hits, size = "BATCHES", w.batched, batchSize
			}
			streams[c.batched] = r.fill(t, name, w, o.size(hits), size)
		}
		return streams[c.batched]
	}
}

// measureStreams compares one stream with several, and one worker with several,
// on the same number of hits.
func measureStreams(t *testing.T, r *rig, o options) []*candidate {
	type shape struct{ streams, workers int }
	shapes := []shape{{1, 1}, {4, 1}, {8, 1}}
	if o.fleet {
		shapes = append(shapes, shape{4, 2})
	}
	filled := map[int][]*stored{}
	var all []*candidate
	for _, s := range shapes {
		c := &candidate{sample: sample{part: "multi", name: fmt.Sprintf("streams: %d, workers: %d", s.streams, s.workers)}}
		c.measure = func(t *testing.T, r *rig, _ *stored) figures {
			prefix := fmt.Sprintf("M%d_", s.streams)
			if streams := filled[s.streams]; streams == nil || !streams[0].fresh() {
				filled[s.streams] = nil
				for i := range s.streams {
					stream := r.fill(t, fmt.Sprint(prefix, i), workloads[2], o.size(multiHits)/s.streams, 1)
					filled[s.streams] = append(filled[s.streams], stream)
				}
			}
			return r.tallyroll(t, filled[s.streams], prefix+"*", s.workers)
		}
		all = append(all, c)
		c.Base = &all[0].sample
	}
	all = chosen(o, all...)
	countInTurns(t, r, o, all, func(testing.TB, *candidate) *stored { return nil })
	return all
}
