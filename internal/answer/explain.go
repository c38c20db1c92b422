package answer

import (
	"context"
	"time"

	"tallyroll/internal/window"
)

// Explained is what an explained total has beside its numbers. It is exported for encoding/json.
type Explained struct {
	Explain []Explanation `json:"explain" required:"false" doc:"What the total was made of, if that was asked for; a sum has one explanation per counter."`
}

// Explanation is what the total of a counter was made of.
type Explanation struct {
	Key     string          `json:"key" doc:"The counter." example:"api-1"`
	Shard   int             `json:"shard" doc:"The shard that holds the counter." example:"3"`
	AsOf    time.Time       `json:"as_of" doc:"Every hit stored before this moment has been counted on the shard." example:"2026-11-21T10:00:00.2Z"`
	Cursors []readCursor    `json:"cursors" doc:"How far the shard was in each stream."`
	Hashes  []explainedHash `json:"hashes" doc:"The Redis hashes that were read."`
}

// readCursor is how far a shard was in a stream.
type readCursor struct {
	Stream string    `json:"stream" doc:"The stream." example:"HITS"`
	Key    string    `json:"redis_key" doc:"The hash that holds the cursor." example:"tallyroll:{3}:cursor:HITS"`
	Seq    uint64    `json:"seq" doc:"The last sequence of the stream that had been applied to the counter." example:"812"`
	AsOf   time.Time `json:"as_of" doc:"Every hit that the stream stored before this moment has been counted on the shard." example:"2026-11-21T10:00:00.2Z"`
}

// explainedHash is a hash that was read.
type explainedHash struct {
	Key   string          `json:"redis_key" doc:"Its key." example:"tallyroll:{3}:h:15m:10384:api-1"`
	Cell  string          `json:"cell" doc:"The length of its cells." example:"15m"`
	Cells []explainedCell `json:"cells" doc:"Its fields that counted, by time."`
}

// explainedCell is a field that counted.
type explainedCell struct {
	Field string    `json:"field" doc:"The field." example:"12"`
	Count int64     `json:"count" doc:"Its value: the hits of the cell." example:"31"`
	From  time.Time `json:"from" doc:"The start of the cell." example:"2026-11-21T09:45:00Z"`
	To    time.Time `json:"to" doc:"The end of the cell, not included." example:"2026-11-21T10:00:00Z"`
	Total int64     `json:"total" doc:"What the cell added to total: its count, or less if an edge of the window cuts it." example:"31"`
	Lower int64     `json:"lower" doc:"What the cell added to lower." example:"31"`
	Upper int64     `json:"upper" doc:"What the cell added to upper." example:"31"`
}

// explained is answers, and what they were made of if that was asked for.
type explained struct {
	window.Answers
	why []window.Explanation
}

// answer answers questions, and explains the answers if the input asks for it.
func (d *Desk) answer(ctx context.Context, in *Input, questions []window.Question) (out explained, err error) {
	wanted, err := in.explain.parse("explain")
	switch {
	case err != nil:
	case wanted:
		out.Answers, out.why, err = d.Reader.Explain(ctx, questions, d.MaxExplain)
	default:
		out.Answers, err = d.Reader.Answer(ctx, questions)
	}
	return out, err
}

// at is the explanation of an answer, or none.
func (e *explained) at(i int) []window.Explanation {
	if !e.explains() {
		return nil
	}
	return e.why[i : i+1]
}

func (e *explained) explains() bool { return e.why != nil }

// explain adds the explanations of the questions that a total was made of, if there are any.
func (t *Total) explain(questions []window.Question, why []window.Explanation) {
	if len(why) == 0 {
		return
	}
	t.Explained = &Explained{}
	for i, w := range why {
		t.Explain = append(t.Explain, explanationOf(questions[i].Counter, w))
	}
}

func explanationOf(key string, w window.Explanation) Explanation {
	out := Explanation{
		Key: key, Shard: w.Shard, AsOf: Time(w.AsOf), Cursors: make([]readCursor, len(w.Cursors)), Hashes: make([]explainedHash, len(w.Hashes)),
	}
	for i, c := range w.Cursors {
		out.Cursors[i] = readCursor{Stream: c.Stream, Key: c.Key, Seq: c.Seq, AsOf: Time(c.AsOf)}
	}
	for i, h := range w.Hashes {
		cells := make([]explainedCell, len(h.Cells))
		for k, c := range h.Cells {
			cells[k] = explainedCell{
				Field: c.Field, Count: c.N, From: Time(c.Range.From), To: Time(c.Range.To), Total: c.Total, Lower: c.Lower, Upper: c.Upper,
			}
		}
		out.Hashes[i] = explainedHash{Key: h.Key, Cell: window.FormatDuration(h.Tier.Cell), Cells: cells}
	}
	return out
}
