package read

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
)

// Top is the counters with most hits, and a bound on the others.
type Top struct {
	// AsOf is as in Answers. The totals may include later hits, too.
	AsOf          int64
	Range         window.Range // what the span was when the summaries were read
	Complete      bool         // see Answer
	CountingSince int64
	// Floor bounds the hits applied at AsOf of every counter that is not in the list, if it has a prefix asked
	// for.
	Floor    int64
	Counters []TopCounter // by total, the largest first; then by name
	// Overflows are the overflow counters that may have hits of any counter.
	Overflows []string
}

// TopCounter is a counter and Reader.Answer's answer about it.
type TopCounter struct {
	Counter string
	window.Answer
}

// Bounds lists every counter that summaries list, with the most hits that it may have: Upper, and nothing
// else of an answer. Floor bounds all others. Its errors are those of Top.
func (r *Reader) Bounds(ctx context.Context, asked window.Span) (Top, error) {
	return WithSurvey(ctx, r, func(base Survey) (Top, error) {
		out, _, candidates, err := base.bounds(ctx, asked)
		for _, c := range candidates {
			out.Counters = append(out.Counters, TopCounter{c.counter,
				window.Answer{Estimate: window.Estimate{Upper: c.bound}}})
		}
		return out, err
	})
}

// bounds returns a list without counters, its plan, and the candidates for it, largest bound first.
func (s Survey) bounds(ctx context.Context, span window.Span) (Top, window.Plan, []candidate, error) {
	plans, err := planAll(s.dir.Layout, []window.Question{{Counter: "", Span: span}}, s.at.milli)
	if err != nil {
		return Top{}, window.Plan{}, nil, err
	}
	candidates, floor, whole, err := s.listCandidates(ctx, plans[0])
	out := Top{AsOf: s.asOf(), Range: plans[0].Range, Complete: whole && s.complete(plans[0]),
		CountingSince: s.countingSince(), Floor: floor, Overflows: s.dir.OverflowsUnder("", plans[0].Range.From)}
	return out, plans[0], candidates, err
}

type candidate struct {
	counter string
	bound   int64 // the most hits that the counter had in the range
}

const (
	topChunk = 200
	// maxTopReads bounds the candidates read beyond limit: many counters can have nearly the same count.
	maxTopReads = 2000
)

// Top finds up to limit counters with most hits, among those whose names begin with one of the prefixes, if
// there are any. Errors: those of Answer; a *QuestionError has the index 0; a *TooMuchError if MaxCells does
// not allow limit counters. It reads the counters that summaries list, in the order of their bounds, until no
// other can be among the first, or until it reaches maxTopReads or MaxCells; Floor then bounds what may be
// missing.
func (r *Reader) Top(ctx context.Context, asked window.Span, limit int, prefixes ...string) (Top, error) {
	return WithSurvey(ctx, r, func(base Survey) (Top, error) { return base.top(ctx, asked, limit, prefixes) })
}

func (s Survey) top(ctx context.Context, span window.Span, limit int, prefixes []string) (Top, error) {
	out, plan, candidates, err := s.bounds(ctx, span)
	if err != nil {
		return Top{}, err
	}
	if len(prefixes) > 0 {
		candidates = slices.DeleteFunc(candidates, func(c candidate) bool {
			return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(c.counter, p) })
		})
	}
	most, err := s.affordable(min(limit, len(candidates)), plan)
	if err != nil {
		return Top{}, err
	}
	most = min(most, limit+maxTopReads)
	for len(candidates) > 0 && most > 0 && !out.settled(limit, candidates[0].bound) {
		chunk := candidates[:min(len(candidates), max(topChunk, limit), most)]
		if err := out.add(ctx, s, span, chunk); err != nil {
			return Top{}, err
		}
		candidates, most = candidates[len(chunk):], most-len(chunk)
		out.trim(limit)
	}
	if len(candidates) > 0 {
		out.Floor = max(out.Floor, candidates[0].bound)
	}
	overflow, err := s.mostOverflow(ctx, span, out.Overflows)
	out.Floor = window.AddCounts(out.Floor, overflow)
	return out, err
}

// mostOverflow returns the most hits that one of the overflow counters has in a span: a counter may have
// these, too. The span may end now: an end that has just passed needs other hashes a moment later, and the
// answer would always be stale.
func (s Survey) mostOverflow(ctx context.Context, span window.Span, overflows []string) (most int64, err error) {
	var questions []window.Question
	for _, counter := range overflows {
		questions = append(questions, window.Question{Counter: counter, Span: span, Part: true})
	}
	if len(questions) == 0 {
		return 0, nil
	}
	found, err := s.answer(ctx, questions)
	for _, a := range found.Answers {
		most = max(most, a.Upper)
	}
	return most, err
}

// listCandidates returns the listed counters, largest bound first. floor bounds all others if whole is set.
func (s Survey) listCandidates(ctx context.Context, plan window.Plan) (out []candidate, floor int64, whole bool,
	err error) {
	layout, store := s.dir.Layout, s.reader.Store
	level, first, last, whole := layout.Segments(plan)
	tier := layout.Tiers[level]
	var read []*summaries
	cmds, err := store.Client.Read(ctx, func(p redis.Pipeliner) error {
		read = nil
		for shard := range layout.Shards {
			var keys []string
			for _, stream := range s.dir.Streams {
				for number := first; number <= last; number++ {
					keys = append(keys, store.Keys.Summary(shard, tier, number, stream))
				}
			}
			if len(keys) > 0 {
				read = append(read, &summaries{keys: keys, there: p.Exists(ctx, keys...), texts: p.MGet(ctx, keys...)})
			}
		}
		return nil
	})
	if err != nil {
		return nil, 0, false, fmt.Errorf("read the summaries of %d segments: %w", last-first+1,
			cluster.WrapForeignReply(cmds, err))
	}
	// Of a range that ended a moment ago, the plan has used up to half of the grace.
	if !s.stillHolds(time.Duration(tier.Grace()/2) * time.Millisecond) {
		return nil, 0, false, ErrStale
	}
	for _, shard := range read {
		if err := shard.check(ctx, store.Client); err != nil {
			return nil, 0, false, err
		}
		found, unlisted, err := shard.bounds()
		if err != nil {
			return nil, 0, false, err
		}
		out, floor = append(out, found...), max(floor, unlisted)
	}
	slices.SortFunc(out, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.bound, a.bound), strings.Compare(a.counter, b.counter))
	})
	return out, floor, whole, nil
}

type summaries struct {
	keys  []string
	there *redis.IntCmd // how many of the keys exist, whatever their type
	texts *redis.SliceCmd
}

// check reads again if there were more keys than values: MGET answers for a key of another type as
// if it did not exist, and its counters would be missing without warning.
func (s *summaries) check(ctx context.Context, client *cluster.Client) error {
	var missing []string
	for i, value := range s.texts.Val() {
		if value == nil {
			missing = append(missing, s.keys[i])
		}
	}
	if int(s.there.Val()) <= len(s.keys)-len(missing) {
		return nil
	}
	cmds, err := client.Read(ctx, func(p redis.Pipeliner) error {
		for _, key := range missing {
			p.Get(ctx, key)
		}
		return nil
	})
	if err = cluster.WrapForeignReply(cmds, err); errors.Is(err, redis.Nil) {
		return nil // it has expired in between
	}
	return err
}

// bounds adds up the summaries. A counter has at most its count in each summary that lists it, and at most
// the floor of each summary that does not.
func (s *summaries) bounds() (listed []candidate, unlisted int64, err error) {
	above := make(map[string]int64) // the sum of count - floor over the summaries that list a counter
	for i, value := range s.texts.Val() {
		text, exists := value.(string)
		if !exists {
			continue
		}
		found, err := window.ParseSummary(text)
		if err != nil {
			return nil, 0, &window.ForeignError{Key: s.keys[i], Err: fmt.Errorf("its summary %w", err)}
		}
		for _, e := range found.Listed {
			above[e.Name] = window.AddCounts(above[e.Name], max(e.Count-found.Floor, 0))
		}
		unlisted = window.AddCounts(unlisted, found.Floor)
	}
	listed = make([]candidate, 0, len(above))
	for counter, n := range above {
		listed = append(listed, candidate{counter, window.AddCounts(unlisted, n)})
	}
	return listed, unlisted, nil
}

func (t *Top) add(ctx context.Context, base Survey, asked window.Span, chunk []candidate) error {
	questions := make([]window.Question, len(chunk))
	for i, c := range chunk {
		questions[i] = window.Question{Counter: c.counter, Span: asked}
	}
	found, err := base.answer(ctx, questions)
	if err != nil {
		return err
	}
	for i, a := range found.Answers {
		t.Counters = append(t.Counters, TopCounter{chunk[i].counter, a})
	}
	return nil
}

// settled reports whether the list is full, and no counter with at most bound hits can replace one on it.
func (t *Top) settled(limit int, bound int64) bool {
	return len(t.Counters) == limit && t.Counters[limit-1].Total >= bound
}

// trim sorts the list, and removes the counters that have no hits or are beyond limit.
func (t *Top) trim(limit int) {
	slices.SortFunc(t.Counters, func(a, b TopCounter) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), strings.Compare(a.Counter, b.Counter))
	})
	keep := min(limit, len(t.Counters))
	for keep > 0 && t.Counters[keep-1].Total == 0 {
		keep--
	}
	for _, c := range t.Counters[keep:] {
		t.Floor = max(t.Floor, c.Upper)
	}
	t.Counters = t.Counters[:keep]
}
