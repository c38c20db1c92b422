package window

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// The names of counters. A writer sends a name with the expiry of the counter's coarsest hash, in the
// transaction that creates the hash, so every counter with such a hash is listed. There is a set for every
// two windows; a set per epoch would hold a name once for each hash of a window. It expires when the last
// hash that begins in it may expire.
//
// Unique cells can outlive the hashes, and tiers change while unique tiers do not. So every counter with a
// unique cell is also listed in a set of the coarsest unique tier's two windows, which only erasures read.
// The name goes into the transaction that updates the first registers of a cell that its writer knows of.

// NamesOf returns the number, since 1970, of the set that lists the names for an epoch.
func (t Tier) NamesOf(epoch int64) int64 { return FloorDiv(epoch*t.CellsPerEpoch(), t.twoWindows()) }

// NamesDeadline returns the Unix second at which a set of names expires: the latest deadline of its hashes.
func (t Tier) NamesDeadline(set int64) int64 {
	lastEpoch := FloorDiv((set+1)*t.twoWindows()-1, t.CellsPerEpoch())
	return t.Deadline(lastEpoch, math.MaxUint64)
}

// UniqueNamesOf returns the number, since 1970, of the set for unique cells that begin at a moment.
func (l Layout) UniqueNamesOf(milli int64) int64 {
	t := l.UniqueTiers[len(l.UniqueTiers)-1]
	return t.NamesOf(t.EpochAt(milli))
}

// UniqueNamesDeadline returns the Unix second at which such a set expires: the latest deadline of its cells.
func (l Layout) UniqueNamesDeadline(set int64) (out int64) {
	end := (set + 1) * 2 * l.UniqueTiers[len(l.UniqueTiers)-1].Window.Milliseconds()
	for _, t := range l.UniqueTiers {
		out = max(out, t.Deadline(t.CellAt(end-1), math.MaxUint64))
	}
	return out
}

// listNames queues the names of the changes, and their sets' expiries. These must be last in the transaction.
func (w *Writer) listNames(ctx context.Context, p redis.Pipeliner) {
	coarsest := w.layout.Tiers[len(w.layout.Tiers)-1]
	for set, names := range w.changes.names {
		List(ctx, p, w.store.Keys.Names(w.shard, coarsest, set), names, coarsest.NamesDeadline(set))
	}
	for set, names := range w.changes.raises.names {
		List(ctx, p, w.store.Keys.UniqueNames(w.shard, set), names, w.layout.UniqueNamesDeadline(set))
	}
}

func List(ctx context.Context, p redis.Pipeliner, set string, names []string, deadline int64) {
	members := make([]redis.Z, len(names))
	for i := range names {
		members[i].Member = names[i]
	}
	p.ZAdd(ctx, set, members...)
	p.ExpireAt(ctx, set, time.Unix(deadline, 0))
}

// NamesQuestion asks for counters in the order of their names' bytes.
type NamesQuestion struct {
	Prefix string // that the names begin with
	After  string // the first name comes after this one; empty for the beginning
	Limit  int    // at least 1
	// Match, if not nil, reports which names to keep.
	Match func(name string) bool
	// Totals, if not nil, is a span; each counter then comes with the answer about it.
	Totals *Span
	// Listed keeps all names, also of counters without hits in the longest window. Then only names are read.
	Listed bool
}

// Names is a page of counters.
type Names struct {
	AsOf int64 // as in Answers
	// Complete and CountingSince are as in Answer, of the longest window.
	Complete      bool
	CountingSince int64
	// CompleteSince is a moment from which no hit of any counter is known to be missing; math.MaxInt64 if a
	// stream has not been counted yet.
	CompleteSince int64
	// Now is a moment by Redis's clock at which the longest window ended, or earlier.
	Now      int64
	Counters []string
	// Answers has one answer about Totals per counter; empty without Totals.
	Answers []Answer
	// Next is the After of the next question, if there may be more names, even after an empty page.
	Next string
}

const (
	// maxNameRounds bounds the work for a page if many counters have no hits any more, or do not match.
	maxNameRounds = 8
	// namesPerRound is how many names are listed at a time if not all are read: 10 ms on two shared cores.
	namesPerRound = 5000
)

// Names lists the counters that may have hits in the longest window before now. Its errors are those of
// Answer; a *QuestionError is about Totals. MaxCells makes pages shorter; for none it is a *TooMuchError.
func (r *Reader) Names(ctx context.Context, q NamesQuestion) (Names, error) {
	return WithSurvey(ctx, r, func(base Survey) (Names, error) { return r.names(ctx, base, q) })
}

func (r *Reader) names(ctx context.Context, base Survey, q NamesQuestion) (Names, error) {
	layout := base.dir.Layout
	coarsest := layout.Tiers[len(layout.Tiers)-1]
	longest := Last(coarsest.Window)
	plans, err := planAll(layout, []Question{{"", longest}}, base.at.milli)
	if err != nil {
		return Names{}, err
	}
	plan := plans[0]
	spans := []Span{longest}
	if q.Totals != nil {
		more, err := planAll(layout, []Question{{"", *q.Totals}}, base.at.milli)
		if err != nil {
			return Names{}, err
		}
		plans, spans = append(plans, more...), append(spans, *q.Totals)
	}
	most, err := r.affordable(1, plans...)
	if err != nil {
		return Names{}, err
	}
	if q.Listed {
		most = math.MaxInt
	}
	out := Names{AsOf: base.asOf(), Complete: base.complete(plan), CountingSince: base.countingSince(), Next: q.After}
	out.CompleteSince, out.Now = base.completeSince(), base.at.milli
	for range maxNameRounds {
		room := min(q.Limit-len(out.Counters), most)
		list := room
		switch {
		case q.Match != nil:
			list = namesPerRound
		case q.Listed:
			list = min(room, namesPerRound)
		}
		names, more, err := r.namesAfter(ctx, layout, plan.Range, q.Prefix, out.Next, list)
		if err != nil {
			return Names{}, err
		}
		if !r.holds(base, time.Duration(coarsest.Grace())*time.Millisecond) {
			return Names{}, ErrStale
		}
		if more {
			out.Next = names[len(names)-1]
		} else {
			out.Next = ""
		}
		if q.Match != nil {
			names = slices.DeleteFunc(names, func(name string) bool { return !q.Match(name) })
			if len(names) > room {
				names, out.Next = names[:room], names[room-1]
			}
		}
		if q.Listed {
			out.Counters = append(out.Counters, names...)
		} else if err := r.readNames(ctx, base, names, spans, &out); err != nil {
			return Names{}, err
		}
		most -= len(names)
		if out.Next == "" || len(out.Counters) == q.Limit || most == 0 {
			break
		}
	}
	return out, nil
}

// readNames adds counters that may have hits in the first span, with their answers about the second, if any.
func (r *Reader) readNames(ctx context.Context, base Survey, names []string, spans []Span, out *Names) error {
	if len(names) == 0 {
		return nil
	}
	questions := make([]Question, 0, len(names)*len(spans))
	for _, name := range names {
		for _, span := range spans {
			questions = append(questions, Question{name, span})
		}
	}
	found, err := r.answerAfter(ctx, base, questions)
	if err != nil {
		return err
	}
	for i, name := range names {
		answers := found.Answers[i*len(spans):][:len(spans)]
		if answers[0].Upper > 0 {
			out.Counters, out.Answers = append(out.Counters, name), append(out.Answers, answers[1:]...)
		}
	}
	return nil
}

// namesAfter returns the first listed names after a name, or at least some. more reports if there are others.
func (r *Reader) namesAfter(ctx context.Context, l Layout, longest Range, prefix, after string, most int) (names []string, more bool, err error) {
	// Names are spread evenly, so twice a shard's share and a few more are usually enough.
	return ListNames(ctx, r.Store, l, 0, l.Shards, 2*most/l.Shards+16, longest, prefix, after, most)
}

// ListNames is namesAfter for the shards from first to before end, asking each for each names.
func ListNames(ctx context.Context, s *Store, l Layout, first, end, each int, longest Range, prefix, after string, most int) (names []string, more bool, err error) {
	coarsest := l.Tiers[len(l.Tiers)-1]
	return MergeSets(ctx, s, func(shard int) (sets []string) {
		for set := coarsest.NamesOf(coarsest.EpochAt(longest.From)); set <= coarsest.NamesOf(coarsest.EpochAt(longest.To-1)); set++ {
			sets = append(sets, s.Keys.Names(shard, coarsest, set))
		}
		return sets
	}, first, end, each, prefix, after, most)
}

func MergeSets(ctx context.Context, s *Store, sets func(shard int) []string, first, end, each int, prefix, after string, most int) (names []string, more bool, err error) {
	between := &redis.ZRangeBy{Min: "[" + prefix, Max: "(" + prefix + "\xff", Count: int64(each)} // no name has that byte
	if after >= prefix && after != "" {
		between.Min = "(" + after
	}
	var lists []*redis.StringSliceCmd
	if cmds, err := s.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for shard := first; shard < end; shard++ {
			for _, set := range sets(shard) {
				lists = append(lists, p.ZRangeByLex(ctx, set, between))
			}
		}
		return nil
	}); err != nil {
		return nil, false, fmt.Errorf("read names of %d shards: %w", end-first, WrapForeignReply(cmds, err))
	}
	names, more = mergeNames(lists, each, most)
	return names, more, nil
}

// mergeNames returns the first most names of sorted lists of at most each, and whether there may be more.
func mergeNames(lists []*redis.StringSliceCmd, each, most int) (names []string, more bool) {
	// A list that was cut off may go on, so the merged names are complete only up to its last one.
	cut := ""
	for _, list := range lists {
		found := list.Val()
		names = append(names, found...)
		if len(found) == each && (!more || found[each-1] < cut) {
			cut, more = found[each-1], true
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if more {
		end, _ := slices.BinarySearch(names, cut)
		names = names[:end+1]
	}
	if len(names) > most {
		return names[:most], true
	}
	return names, more
}

// GroupOf returns the first parts of a name, separated by . and /. A separator at the beginning, as in a
// path, does not count.
func GroupOf(name string, parts int) string {
	for i := 1; i < len(name); i++ {
		if name[i] == '.' || name[i] == '/' {
			parts--
		}
		if parts == 0 {
			return name[:i]
		}
	}
	return name
}
