package bench_test

import (
	"fmt"
	"testing"
	"time"
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

func candidates(o options) []candidate {
	var out []candidate
	for _, batched := range []bool{false, true} {
		form := ", one hit a message"
		if batched {
			form = fmt.Sprintf(", %d hits a message", batchSize)
		}
		out = append(out,
			candidate{"Tallyroll, 4 tiers" + form, product, batched, true, func(t *testing.T, r *rig, s *stored) figures {
				return r.tallyroll(t, []*stored{s}, 1, "INGEST_STREAMS="+s.stream)
			}},
			candidate{"Tallyroll, 1 tier (1m/1h)" + form, product, batched, false, func(t *testing.T, r *rig, s *stored) figures {
				return r.tallyroll(t, []*stored{s}, 1, "INGEST_STREAMS="+s.stream, "TIERS=1m/1h")
			}},
			candidate{"ceiling: only read" + form, ceiling, batched, false, func(t *testing.T, r *rig, s *stored) figures {
				return r.ceiling(t, s)
			}},
		)
	}
	limit := min(box, max(o.seconds(3), 100*time.Millisecond))
	for _, tech := range techniques {
		out = append(out,
			candidate{tech.name + ", as written", asWritten, false, false, func(t *testing.T, r *rig, s *stored) figures {
				return r.technique(t, s, tech, 0, limit)
			}},
			candidate{tech.name + ", pipelined by 100", pipelines, false, false, func(t *testing.T, r *rig, s *stored) figures {
				return r.technique(t, s, tech, 100, limit)
			}},
		)
	}
	return out
}

// comparison is one workload's results, in the order of the candidates.
type comparison struct {
	workload workload
	rows     []row
}

type row struct {
	candidate candidate
	figures   []figures
}

// measureThroughput lets the candidates count each workload.
func measureThroughput(t *testing.T, r *rig, o options) (out []comparison) {
	for _, w := range workloads {
		var rows []row
		for _, c := range candidates(o) {
			if o.wants("throughput/" + w.name + "/" + c.name) {
				rows = append(rows, row{candidate: c})
			}
		}
		if len(rows) == 0 {
			continue
		}
		takeTurns(t, r, o, "throughput/"+w.name+"/", w, rows)
		out = append(out, comparison{w, rows})
	}
	return out
}

// takeTurns lets the candidates count the workload's hits, each round beginning with another one. path is what
// their names follow.
func takeTurns(t *testing.T, r *rig, o options, path string, w workload, rows []row) {
	var streams [2]*stored // one hit a message, batches
	for run := range o.runs {
		for i := range rows {
			row := &rows[(i+run)%len(rows)]
			c := row.candidate
			f := each(t, path+c.name, run, func(t *testing.T) figures {
				k, name, hits, size := 0, "ONE", w.single, 1
				if c.batched {
					k, name, hits, size = 1, "BATCHES", w.batched, batchSize
				}
				if streams[k] == nil || c.fresh && !streams[k].fresh() {
					streams[k] = fill(t, r.js, name, name, w, o.size(hits), size)
				}
				return c.measure(t, r, streams[k])
			})
			row.figures = append(row.figures, f)
		}
	}
}

// measureStreams compares one stream with several, and one worker with several,
// on the same number of hits.
func measureStreams(t *testing.T, r *rig, o options) (out []row) {
	w := workloads[2]
	type shape struct{ streams, workers int }
	shapes := []shape{{1, 1}, {4, 1}, {8, 1}}
	if o.fleet {
		shapes = append(shapes, shape{4, 2})
	}
	filled := map[int][]*stored{}
	for _, s := range shapes {
		c := candidate{name: fmt.Sprintf("streams: %d, workers: %d", s.streams, s.workers), kind: product}
		if !o.wants("multi/" + c.name) {
			continue
		}
		c.measure = func(t *testing.T, r *rig, _ *stored) figures {
			prefix := fmt.Sprintf("M%d_", s.streams)
			if streams := filled[s.streams]; streams == nil || !streams[0].fresh() {
				filled[s.streams] = nil
				for i := range s.streams {
					name := fmt.Sprintf("%s%d", prefix, i)
					filled[s.streams] = append(filled[s.streams], fill(t, r.js, name, name, w, o.size(multiHits)/s.streams, 1))
				}
			}
			return r.tallyroll(t, filled[s.streams], s.workers, "INGEST_STREAMS="+prefix+"*")
		}
		out = append(out, row{candidate: c})
	}
	for run := range o.runs {
		for i := range out {
			row := &out[(i+run)%len(out)]
			row.figures = append(row.figures, each(t, "multi/"+row.candidate.name, run, func(t *testing.T) figures {
				return row.candidate.measure(t, r, nil)
			}))
		}
	}
	return out
}
