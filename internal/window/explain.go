package window

import (
	"cmp"
	"context"
	"slices"
	"strconv"
)

// ExplainedCells is what a *TooMuchError of Explain counts.
const ExplainedCells = "explained cells"

// Explanation holds what an answer was made of, so that anyone can read the same from Redis and add up.
type Explanation struct {
	Shard   int
	AsOf    int64 // of the shard, see Answers
	Cursors []ReadCursor
	Hashes  []ReadHash
}

// ReadCursor is the cursor of a stream on the shard.
type ReadCursor struct {
	Key, Stream string
	Seq         uint64 // the last sequence that has been applied to the counter
	AsOf        int64  // the cursor's, or that of the claim about its place
}

// ReadHash is a hash that was read, and the cells of it that counted.
type ReadHash struct {
	Key   string
	Tier  Tier
	Cells []ReadCell // by time
}

// ReadCell is a field of a hash.
type ReadCell struct {
	Field    string
	N        int64 // its value
	Range    Range // the time of its hits
	Estimate       // what it added to the answer's
}

// Explain answers like Answer, and adds what the answers were made of. The error is a *TooMuchError if they
// were made of more than maxCells cells.
func (r *Reader) Explain(ctx context.Context, questions []Question, maxCells int) (Answers, []Explanation, error) {
	found, err := r.ask(ctx, planOf(questions))
	if err != nil {
		return Answers{}, nil, err
	}
	out := make([]Explanation, len(found.plans))
	cells := 0
	for i := range found.plans {
		out[i], err = found.explain(i)
		if err != nil {
			return Answers{}, nil, err
		}
		for _, h := range out[i].Hashes {
			cells += len(h.Cells)
		}
		if cells > maxCells {
			return Answers{}, nil, &TooMuchError{What: ExplainedCells, Count: int64(cells), Max: int64(maxCells)}
		}
	}
	return found.answers(), out, nil
}

// explain returns what the answer to a plan was made of.
func (s *snapshot) explain(plan int) (Explanation, error) {
	p := &s.plans[plan]
	out := Explanation{Shard: p.shard, AsOf: s.shards[p.shard].asOf}
	for i, cursor := range s.shards[p.shard].cursors {
		c, exists, err := cursor.record()
		if err != nil {
			return Explanation{}, err
		}
		if exists {
			out.Cursors = append(out.Cursors, ReadCursor{
				Key: cursor.key, Stream: s.dir.streams[i], Seq: c.Applied(HashCounter([]byte(p.counter))),
				AsOf: s.claims[s.dir.streams[i]].Renew(c.Cursor).AsOf,
			})
		}
	}
	for h := range p.hashes {
		cells := s.counted(plan, len(out.Hashes), h)
		out.Hashes = append(out.Hashes, ReadHash{s.keys.hash(h), h.tier, cells})
	}
	return out, nil
}

// counted returns the cells of a plan's hash that count, the hash with that index. Each of them is added up
// alone, by the same code that adds up all of them, so that an explanation cannot tell another story than
// its answer.
func (s *snapshot) counted(plan, index int, h cellHash) (out []ReadCell) {
	cells := s.cells[plan]
	alone := make(planCells, len(cells))
	for i, c := range cells[index] {
		alone[index] = cells[index][i : i+1]
		estimate := s.estimate(&s.plans[plan], alone)
		if estimate.Upper == 0 {
			continue
		}
		start := h.tier.cellStart(h.tier.cellOf(h.epoch, c.field))
		out = append(out, ReadCell{strconv.FormatInt(c.field, 10), c.n, Range{start, start + h.tier.cellMillis()}, estimate})
	}
	slices.SortFunc(out, func(a, b ReadCell) int { return cmp.Compare(a.Range.From, b.Range.From) })
	return out
}
