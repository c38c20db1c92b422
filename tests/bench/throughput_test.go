package bench_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tallyroll/internal/boot"
)

// candidate is a way of counting a stream.
type candidate struct {
	name    string
	kind    kind
	batched bool // reads the stream of batches
	fresh   bool // needs a stream that has just been filled
	measure func(t *testing.T, r *rig, s *stored) figures
}

type kind int

const (
	ceiling kind = iota
	product
	asWritten
	pipelines
)

const (
	batchSize = 100
	multiHits = 2_000_000
	// box bounds one run of a technique: rates are compared, not amounts.
	box = 2 * time.Second
)

// worker is the candidate that counts by ingest with these settings.
func worker(name string, batched, fresh bool, env ...string) candidate {
	return candidate{name, product, batched, fresh, func(t *testing.T, r *rig, s *stored) figures {
		return r.tallyroll(t, []*stored{s}, 1, append(env, "INGEST_STREAMS="+s.stream)...)
	}}
}

// forms are the two forms of a stream's messages, in words.
var forms = map[bool]string{false: ", one hit a message", true: fmt.Sprintf(", %d hits a message", batchSize)}

func candidates(o options) []candidate {
	var out []candidate
	for _, batched := range []bool{false, true} {
		form := forms[batched]
		out = append(out,
			worker("Tallyroll, 4 tiers"+form, batched, true),
			worker("Tallyroll, 1 tier (1m/1h)"+form, batched, false, "TIERS=1m/1h"),
			candidate{"ceiling: only read" + form, ceiling, batched, false, func(t *testing.T, r *rig, s *stored) figures {
				return r.ceiling(t, s)
			}},
		)
	}
	limit := min(box, max(o.seconds(3), 100*time.Millisecond))
	for _, tech := range techniques {
		technique := func(name string, kind kind, batch int) candidate {
			return candidate{tech.name + name, kind, false, false, func(t *testing.T, r *rig, s *stored) figures {
				return r.technique(t, s, tech, batch, limit)
			}}
		}
		out = append(out, technique(", as written", asWritten, 0), technique(", pipelined by 100", pipelines, 100))
	}
	return out
}

// comparison is one workload's results, in the order of the candidates.
type comparison struct {
	workload workload
	rows     []*row
}

// row is a candidate and what was measured of it, a round each.
type row struct {
	candidate candidate
	figures   []figures
}

// rowsOf are the rows of the candidates that ONLY selects.
func rowsOf(o options, path string, all []candidate) (rows []*row) {
	for _, c := range chosen(o, func(c candidate) string { return path + c.name }, all...) {
		rows = append(rows, &row{candidate: c})
	}
	return rows
}

// measureThroughput lets the candidates count each workload.
func measureThroughput(t *testing.T, r *rig, o options) (out []comparison) {
	for _, w := range workloads {
		path := "throughput/" + w.name + "/"
		if rows := rowsOf(o, path, candidates(o)); len(rows) > 0 {
			countInTurns(t, r, o, path, rows, streamsOf(r, o, w))
			out = append(out, comparison{w, rows})
		}
	}
	return out
}

// countInTurns lets the candidates count in turns. path is what their names follow, and stream what each reads.
func countInTurns(t *testing.T, r *rig, o options, path string, rows []*row, stream func(testing.TB, candidate) *stored) {
	t.Helper()
	inTurns(t, o, rows, func(row *row) string { return path + row.candidate.name }, func(t *testing.T, row *row, run int) {
		f := row.candidate.measure(t, r, stream(t, row.candidate))
		row.figures = append(row.figures, f)
		name := fmt.Sprintf("%s%s run %d: ", path, row.candidate.name, run+1)
		fmt.Printf("%s%.0f hits/s (%d hits, %.2f s)\n", name, f.rate(), f.hits, f.seconds)
		if f.late {
			fmt.Println(name + "too slow: cells of the finest tier may have expired before they were written")
		}
	})
}

// streamsOf fills a workload's streams, one hit a message and batches, when a candidate needs them.
func streamsOf(r *rig, o options, w workload) func(testing.TB, candidate) *stored {
	streams := make(map[bool]*stored)
	return func(t testing.TB, c candidate) *stored {
		if s := streams[c.batched]; s == nil || c.fresh && !s.fresh() {
			name, hits, size := "ONE", w.single, 1
			if c.batched {
				name, hits, size = "BATCHES", w.batched, batchSize
			}
			streams[c.batched] = fill(t, r.js, name, name, w, o.size(hits), size)
		}
		return streams[c.batched]
	}
}

// measureStreams compares one stream with several, and one worker with several,
// on the same number of hits.
func measureStreams(t *testing.T, r *rig, o options) []*row {
	type shape struct{ streams, workers int }
	shapes := []shape{{1, 1}, {4, 1}, {8, 1}}
	if o.fleet {
		shapes = append(shapes, shape{4, 2})
	}
	filled := map[int][]*stored{}
	var all []candidate
	for _, s := range shapes {
		name := fmt.Sprintf("streams: %d, workers: %d", s.streams, s.workers)
		all = append(all, candidate{name: name, kind: product, measure: func(t *testing.T, r *rig, _ *stored) figures {
			prefix := fmt.Sprintf("M%d_", s.streams)
			if streams := filled[s.streams]; streams == nil || !streams[0].fresh() {
				filled[s.streams] = nil
				for i := range s.streams {
					name := fmt.Sprintf("%s%d", prefix, i)
					filled[s.streams] = append(filled[s.streams], fill(t, r.js, name, name, workloads[2], o.size(multiHits)/s.streams, 1))
				}
			}
			return r.tallyroll(t, filled[s.streams], s.workers, "INGEST_STREAMS="+prefix+"*")
		}})
	}
	rows := rowsOf(o, "multi/", all)
	countInTurns(t, r, o, "multi/", rows, func(testing.TB, candidate) *stored { return nil })
	return rows
}

// throughputTable is a workload's table.
type throughputTable struct {
	Title           string
	Single, Batched string // hits per run
	Plot, Late      bool
	Rows            []string
}

func throughputTables(all []comparison, o options) (out []throughputTable) {
	for _, c := range all {
		table := throughputTable{
			Title:  c.workload.title,
			Single: boot.Thousands(float64(o.size(c.workload.single))), Batched: boot.Thousands(float64(o.size(c.workload.batched))),
			Plot: c.workload.name == plotted && o.out != "",
		}
		for _, row := range c.rows {
			late := slices.ContainsFunc(row.figures, func(f figures) bool { return f.late })
			table.Late = table.Late || late
			table.Rows = append(table.Rows, c.line(row, late))
		}
		out = append(out, table)
	}
	return out
}

// line is a row of a workload's table.
func (c comparison) line(r *row, late bool) string {
	name, commands := r.candidate.name, "–"
	if late {
		name += " *"
	}
	if r.candidate.kind != ceiling {
		commands = r.commandsPerHit()
	}
	ofCeiling := r.of(c.rows, func(other *row) bool { return r.sameForm(other) && other.candidate.kind == ceiling })
	ofUs := r.of(c.rows, func(other *row) bool { return r.sameForm(other) && other.candidate.fresh }) // all tiers
	return cellsOf(name, spread(r.rates()), ofCeiling, ofUs, r.micros(figures.worker), r.micros(figures.redis), r.micros(figures.broker),
		commands, r.bytesPerCounter(), r.rss())
}

// countingRows are the rows of a table in which each is compared with the first one that base takes.
func countingRows(rows []*row, base func(r, other *row) bool) (out []string) {
	for _, r := range rows {
		out = append(out, cellsOf(r.candidate.name, spread(r.rates()), r.of(rows, func(other *row) bool { return base(r, other) }),
			r.micros(figures.worker), r.micros(figures.redis), r.micros(figures.broker), r.commandsPerHit(), r.rss()))
	}
	return out
}

func (r *row) first(*row) bool          { return true }
func (r *row) sameForm(other *row) bool { return r.candidate.batched == other.candidate.batched }

// of is the row's rate as a ratio to that of the first one that base takes.
func (r *row) of(rows []*row, base func(*row) bool) string {
	i := slices.IndexFunc(rows, base)
	if i < 0 {
		return "–"
	}
	return ratio(median(r.rates()), median(rows[i].rates()))
}

func (f figures) worker() float64 { return f.perHit(f.workerCPU) }
func (f figures) redis() float64  { return f.perHit(f.redisCPU) }
func (f figures) broker() float64 { return f.perHit(f.brokerCPU) }

func (r *row) values(of func(figures) float64) (out []float64) {
	for _, f := range r.figures {
		out = append(out, of(f))
	}
	return out
}

func (r *row) rates() []float64                       { return r.values(figures.rate) }
func (r *row) micros(of func(figures) float64) string { return short(median(r.values(of))) }

func (r *row) commandsPerHit() string {
	return short(median(r.values(func(f figures) float64 { return float64(f.commands) / float64(f.hits) })))
}

// bytesPerCounter has none if there are too few counters to tell.
func (r *row) bytesPerCounter() string {
	if r.figures[0].counters < 1000 {
		return "–"
	}
	return boot.Thousands(median(r.values(func(f figures) float64 { return float64(f.redisBytes) / float64(f.counters) })))
}

func (r *row) rss() string {
	mib := median(r.values(func(f figures) float64 { return float64(f.workerRSS) / (1 << 20) }))
	if mib == 0 {
		return "–" // inside the benchmark's own process
	}
	return fmt.Sprintf("%.0f MiB", mib)
}
