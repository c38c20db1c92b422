package window

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// topChunk is how many candidates are read at a time.
	topChunk = 200
	// maxTopReads bounds the candidates that are read beyond those asked for. Where
	// counters are much alike, reading on would go through all of them.
	maxTopReads = 2000
)

// Top is the counters with most hits, and what is known of the others.
type Top struct {
	// AsOf is as in Answers. The totals may have later hits too.
	AsOf     int64
	Complete bool // see Answer
	// CountingSince is as in Answer.
	CountingSince int64
	// Floor is a number of hits: no counter that is not in the list had more, of
	// those that were applied at AsOf.
	Floor    int64
	Counters []TopCounter // by total, the largest first; then by name
}

// TopCounter is a counter and what Reader.Answer says of it.
type TopCounter struct {
	Counter string
	Answer
}

// candidate is a counter that a summary lists.
type candidate struct {
	counter string
	bound   int64 // it had no more hits in the range
}

// Top finds up to limit counters with most hits in a range. Errors are as those
// of Answer; a *QuestionError has the index 0.
//
// The summaries of all streams bound the hits of every counter. The counters that
// they list are read exactly, in the order of those bounds, until no other can be
// among the first, or until maxTopReads or MaxCells stop it: Floor then says what
// may be missing. It is a *TooMuchError where MaxCells does not allow even limit
// counters to be read.
func (r *Reader) Top(ctx context.Context, asked Span, limit int) (out Top, err error) {
	err = r.surveyed(ctx, func(on survey) error {
		out, err = r.top(ctx, on, asked, limit)
		return err
	})
	return out, err
}

func (r *Reader) top(ctx context.Context, on survey, span Span, limit int) (Top, error) {
	plans, err := r.plan(on.known.layout, []Question{{"", span}}, on.at.milli)
	if err != nil {
		return Top{}, err
	}
	plan := plans[0]
	candidates, floor, err := r.candidates(ctx, on, plan)
	if err != nil {
		return Top{}, err
	}
	most, err := r.affordable(plan, min(limit, len(candidates)))
	if err != nil {
		return Top{}, err
	}
	most = min(most, limit+maxTopReads)
	out := Top{AsOf: on.asOf(), Complete: on.complete(plan.Range), CountingSince: on.countingSince(), Floor: floor}
	for len(candidates) > 0 && most > 0 && !out.settled(limit, candidates[0].bound) {
		chunk := candidates[:min(len(candidates), max(topChunk, limit), most)]
		if err := r.readCandidates(ctx, on, span, chunk, &out); err != nil {
			return Top{}, err
		}
		candidates, most = candidates[len(chunk):], most-len(chunk)
		out.trim(limit)
	}
	if len(candidates) > 0 {
		out.Floor = max(out.Floor, candidates[0].bound)
	}
	return out, nil
}

// candidates are the listed counters, the largest bound first. floor bounds all others.
func (r *Reader) candidates(ctx context.Context, on survey, plan Plan) (out []candidate, floor int64, err error) {
	layout := on.known.layout
	level, first, last := layout.segments(plan)
	tier := layout.Tiers[level]
	var read []*summaries
	cmds, err := r.store.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for shard := range layout.Shards {
			var keys []string
			for _, stream := range on.streams {
				for cell := first; cell <= last; cell++ {
					keys = append(keys, r.store.keys.summary(shard, tier, cell, stream))
				}
			}
			if len(keys) > 0 {
				read = append(read, &summaries{keys: keys, there: p.Exists(ctx, keys...), texts: p.MGet(ctx, keys...)})
			}
		}
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read the summaries of %d segments: %w", last-first+1, foreignReply(cmds, err))
	}
	if !r.holds(on, time.Duration(tier.grace())*time.Millisecond) {
		return nil, 0, errStale
	}
	for _, shard := range read {
		if err := r.checkSummaries(ctx, shard); err != nil {
			return nil, 0, err
		}
		found, unlisted, err := shard.bounds()
		if err != nil {
			return nil, 0, err
		}
		out, floor = append(out, found...), max(floor, unlisted)
	}
	slices.SortFunc(out, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.bound, a.bound), strings.Compare(a.counter, b.counter))
	})
	return out, floor, nil
}

// summaries are those of a shard.
type summaries struct {
	keys  []string
	there *redis.IntCmd // how many of the keys exist, of whatever type
	texts *redis.SliceCmd
}

// checkSummaries looks again if there were more keys than values: MGET takes a key
// of another type for one that is not there, and the counters that its hits belong
// to would be missing without a word.
func (r *Reader) checkSummaries(ctx context.Context, s *summaries) error {
	var missing []string
	for i, value := range s.texts.Val() {
		if value == nil {
			missing = append(missing, s.keys[i])
		}
	}
	if int(s.there.Val()) <= len(s.keys)-len(missing) {
		return nil
	}
	cmds, err := r.store.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range missing {
			p.Get(ctx, key)
		}
		return nil
	})
	if err = foreignReply(cmds, err); errors.Is(err, redis.Nil) {
		return nil // it has expired in between
	}
	return err
}

// bounds adds the summaries up. A counter has at most its count in each summary
// that lists it and at most the floor of each that does not.
func (s *summaries) bounds() (listed []candidate, unlisted int64, err error) {
	above := make(map[string]int64) // the sum of count - floor where a counter is listed
	for i, value := range s.texts.Val() {
		text, found := value.(string)
		if !found {
			continue
		}
		floor, entries, err := decodeSummary(text)
		if err != nil {
			return nil, 0, &ForeignError{s.keys[i], fmt.Errorf("as a summary %w", err)}
		}
		for _, e := range entries {
			above[e.name] = addCounts(above[e.name], max(e.count-floor, 0))
		}
		unlisted = addCounts(unlisted, floor)
	}
	listed = make([]candidate, 0, len(above))
	for counter, n := range above {
		listed = append(listed, candidate{counter, addCounts(unlisted, n)})
	}
	return listed, unlisted, nil
}

// readCandidates puts counters with hits in the range on the list.
func (r *Reader) readCandidates(ctx context.Context, on survey, asked Span, chunk []candidate, out *Top) error {
	questions := make([]Question, len(chunk))
	for i, c := range chunk {
		questions[i] = Question{c.counter, asked}
	}
	found, err := r.answerAt(ctx, on, questions)
	if err != nil {
		return err
	}
	for i, a := range found.Answers {
		out.Counters = append(out.Counters, TopCounter{chunk[i].counter, a})
	}
	return nil
}

// settled reports whether the list is full of counters that none with at most
// bound hits can drive out.
func (t *Top) settled(limit int, bound int64) bool {
	return len(t.Counters) == limit && t.Counters[limit-1].Total.Total >= bound
}

// trim orders the list and takes off what is beyond limit or has no hits.
func (t *Top) trim(limit int) {
	slices.SortFunc(t.Counters, func(a, b TopCounter) int {
		return cmp.Or(cmp.Compare(b.Total.Total, a.Total.Total), strings.Compare(a.Counter, b.Counter))
	})
	keep := min(limit, len(t.Counters))
	for keep > 0 && t.Counters[keep-1].Total.Total == 0 {
		keep--
	}
	for _, c := range t.Counters[keep:] {
		t.Floor = max(t.Floor, c.Upper)
	}
	t.Counters = t.Counters[:keep]
}
