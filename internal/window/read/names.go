package read

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

// NamesQuestion asks for counters in the order of their names' bytes.
type NamesQuestion struct {
	Prefix string // that the names begin with
	After  string // the first name comes after this one; empty for the beginning
	Limit  int    // at least 1
	// Match, if not nil, reports which names to keep.
	Match func(name string) bool
	// Within, if not nil, is a span in place of the longest window: only names that can have hits in it.
	Within *window.Span
	// Totals, if not nil, is a span; each counter then comes with the answer about it.
	Totals *window.Span
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
	Answers []window.Answer
	// Overflows are overflow counters that may have hits of counters with the prefix, also of ones not listed.
	Overflows []string
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
	return WithSurvey(ctx, r, func(base Survey) (Names, error) { return base.names(ctx, q) })
}

func (s Survey) names(ctx context.Context, q NamesQuestion) (Names, error) {
	layout := s.dir.Layout
	coarsest := layout.Tiers[len(layout.Tiers)-1]
	longest := window.Last(coarsest.Window)
	if q.Within != nil {
		longest = *q.Within
	}
	plans, err := planAll(layout, []window.Question{{Counter: "", Span: longest}}, s.at.milli)
	if err != nil {
		return Names{}, err
	}
	plan := plans[0]
	spans := []window.Span{longest}
	if q.Totals != nil {
		more, err := planAll(layout, []window.Question{{Counter: "", Span: *q.Totals}}, s.at.milli)
		if err != nil {
			return Names{}, err
		}
		plans, spans = append(plans, more...), append(spans, *q.Totals)
	}
	most, err := s.affordable(1, plans...)
	if err != nil {
		return Names{}, err
	}
	if q.Listed {
		most = math.MaxInt
	}
	out := Names{AsOf: s.asOf(), Complete: s.complete(plan), CountingSince: s.countingSince(), Next: q.After}
	out.CompleteSince, out.Now = s.completeSince(), s.at.milli
	out.Overflows = s.dir.OverflowsUnder(q.Prefix, plan.Range.From)
	sets := NameSetsOf(s.reader.Store.Keys, layout, plan.Range)
	for range maxNameRounds {
		room := min(q.Limit-len(out.Counters), most)
		list := room
		switch {
		case q.Match != nil:
			list = namesPerRound
		case q.Listed:
			list = min(room, namesPerRound)
		}
		names, more, err := sets.List(ctx, s.reader.Store.Client, q.Prefix, out.Next, list)
		if err != nil {
			return Names{}, err
		}
		if !s.stillHolds(time.Duration(coarsest.Grace()) * time.Millisecond) {
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
		} else if err := out.addListed(ctx, s, names, spans); err != nil {
			return Names{}, err
		}
		most -= len(names)
		if out.Next == "" || len(out.Counters) == q.Limit || most == 0 {
			break
		}
	}
	return out, nil
}

// addListed adds counters that may have hits in the first span, with their answers about the second, if any.
func (n *Names) addListed(ctx context.Context, base Survey, names []string, spans []window.Span) error {
	if len(names) == 0 {
		return nil
	}
	questions := make([]window.Question, 0, len(names)*len(spans))
	for _, name := range names {
		for i, span := range spans {
			questions = append(questions, window.Question{Counter: name, Span: span, Part: i == 0})
		}
	}
	found, err := base.answer(ctx, questions)
	if err != nil {
		return err
	}
	for i, name := range names {
		answers := found.Answers[i*len(spans):][:len(spans)]
		if answers[0].Upper > 0 {
			n.Counters, n.Answers = append(n.Counters, name), append(n.Answers, answers[1:]...)
		}
	}
	return nil
}

// AllNames asks for one page of counters after the other. It ends at the last page, or once it has more than
// most counters. Its answer is as fresh and complete as each page. AsOf is at most Now, because a hit that
// the clock of NATS has dated later is not listed yet.
func AllNames(ctx context.Context, ask func(context.Context, NamesQuestion) (Names, error), q NamesQuestion,
	most int) (Names, error) {
	out := NoNames()
	for {
		q.Limit = most + 1 - len(out.Counters)
		page, err := ask(ctx, q)
		if err != nil {
			return Names{}, err
		}
		out.Add(page)
		if page.Next == "" || len(out.Counters) > most {
			out.AsOf = min(out.AsOf, out.Now)
			return out, nil
		}
		q.After = page.Next
	}
}

// NoNames returns what Add adds the first page to.
func NoNames() Names { return Names{AsOf: math.MaxInt64, Now: math.MaxInt64, Complete: true} }

// Add adds a later page.
func (n *Names) Add(page Names) {
	n.AsOf, n.Now = min(n.AsOf, page.AsOf), min(n.Now, page.Now)
	n.Complete = n.Complete && page.Complete
	n.CompleteSince, n.CountingSince = max(n.CompleteSince, page.CompleteSince), page.CountingSince
	n.Counters, n.Answers = append(n.Counters, page.Counters...), append(n.Answers, page.Answers...)
	n.Overflows, n.Next = page.Overflows, page.Next
}

// NameSets are sorted sets that list counters: the keys of each shard's.
type NameSets [][]string

// NameSetsOf returns the sets that list the counters with hits in a range.
func NameSetsOf(k schema.Keys, l window.Layout, r window.Range) NameSets {
	tier, out := l.NamesTier(), make(NameSets, l.Shards)
	first, last := tier.NamesOf(tier.EpochAt(r.From)), tier.NamesOf(tier.EpochAt(r.To-1))
	for shard := range out {
		for set := first; set <= last; set++ {
			out[shard] = append(out[shard], k.Names(shard, tier, set))
		}
	}
	return out
}

// List returns the first most names with a prefix after a name, each once, or at least some of them, and
// whether there may be more.
func (n NameSets) List(ctx context.Context, client *cluster.Client, prefix, after string, most int) (names []string,
	more bool, err error) {
	// Names are spread evenly, so twice a shard's share and a few more are usually enough.
	each := min(2*most/len(n)+16, most+1)
	const last = "\xff" // no name has that byte
	between := &redis.ZRangeBy{Min: "[" + prefix, Max: "(" + prefix + last, Count: int64(each)}
	if after >= prefix && after != "" {
		between.Min = "(" + after
	}
	var lists []*redis.StringSliceCmd
	if cmds, err := client.Read(ctx, func(p redis.Pipeliner) error {
		lists = nil
		for _, set := range slices.Concat(n...) {
			lists = append(lists, p.ZRangeByLex(ctx, set, between))
		}
		return nil
	}); err != nil {
		return nil, false, fmt.Errorf("read names of %d shards: %w", len(n), cluster.WrapForeignReply(cmds, err))
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
