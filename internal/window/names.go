package window

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// The names of counters. When a writer sets the expiry of a counter's coarsest hash, it also adds
// the counter's name to a sorted set of the shard. Both happen in the transaction
// that makes the hash, so every counter that has a hash is listed. A name costs nothing while its hash
// is in use.
//
// There is a set for every two windows, for the hashes whose epochs begin in them. It expires when the
// last of these hashes may expire. A set per epoch would hold a name once for each hash of a window.

// namesOf is the number, since 1970, of the set that has the names for an epoch.
func (t Tier) namesOf(epoch int64) int64 { return floorDiv(epoch*t.cellsPerEpoch(), t.twoWindows()) }

// namesDeadline is the Unix second at which a set of names expires: the latest deadline of its hashes.
func (t Tier) namesDeadline(set int64) int64 {
	lastEpoch := floorDiv((set+1)*t.twoWindows()-1, t.cellsPerEpoch())
	return t.deadline(lastEpoch, math.MaxUint64)
}

// listNames queues the names of the writer's changes and the expiries of their sets. In the
// transaction, the expiries must come after everything that they belong to.
func (w *Writer) listNames(ctx context.Context, p redis.Pipeliner) {
	coarsest := w.layout.Tiers[len(w.layout.Tiers)-1]
	for set, names := range w.changes.names {
		key := w.store.keys.names(w.shard, set)
		members := make([]redis.Z, len(names))
		for i := range names {
			members[i].Member = names[i]
		}
		p.ZAdd(ctx, key, members...)
		p.ExpireAt(ctx, key, time.Unix(coarsest.namesDeadline(set), 0))
	}
}

// NamesQuestion asks for counters in the order of their names' bytes.
type NamesQuestion struct {
	Prefix string // that the names begin with
	After  string // the first name comes after this one; empty for the beginning
	Limit  int    // at least 1
}

// Names is a page of counters.
type Names struct {
	AsOf int64 // as in Answers
	// Complete and CountingSince are as in Answer, of the longest window.
	Complete      bool
	CountingSince int64
	// CompleteSince is a moment from which no hit of any counter is known to be missing. It is
	// math.MaxInt64 if some stream has not been counted yet.
	CompleteSince int64
	// Now is a moment by Redis's clock at which the longest window ended, or earlier.
	Now      int64
	Counters []string
	// Next is the After of the next question, if there may be more names. A page can be
	// shorter than its limit, or even empty, and still have a next one.
	Next string
}

// maxNameRounds bounds the work for a page if many counters are listed but have no
// hits any more.
const maxNameRounds = 8

// Names lists the counters that may have hits in the longest window before now.
// Its errors are those of Answer. MaxCells can make pages shorter. The error is a
// *TooMuchError if MaxCells does not allow even one counter.
func (r *Reader) Names(ctx context.Context, q NamesQuestion) (out Names, err error) {
	err = r.surveyed(ctx, func(base survey) error {
		out, err = r.names(ctx, base, q)
		return err
	})
	return out, err
}

func (r *Reader) names(ctx context.Context, base survey, q NamesQuestion) (Names, error) {
	layout := base.dir.layout
	coarsest := layout.Tiers[len(layout.Tiers)-1]
	longest := Last(coarsest.Window)
	plans, err := layout.planAll([]Question{{"", longest}}, base.at.milli)
	if err != nil {
		return Names{}, err
	}
	plan := plans[0]
	most, err := r.affordable(plan, 1)
	if err != nil {
		return Names{}, err
	}
	out := Names{AsOf: base.asOf(), Complete: base.complete(plan.Range), CountingSince: base.countingSince(), Next: q.After}
	out.CompleteSince, out.Now = base.completeSince(), base.at.milli
	for range maxNameRounds {
		names, more, err := r.namesAfter(ctx, layout, plan.Range, q.Prefix, out.Next, min(q.Limit-len(out.Counters), most))
		if err != nil {
			return Names{}, err
		}
		if !r.holds(base, time.Duration(coarsest.grace())*time.Millisecond) {
			return Names{}, errStale
		}
		questions := make([]Question, len(names))
		for i, name := range names {
			questions[i] = Question{name, longest}
		}
		found, err := r.answerAfter(ctx, base, questions)
		if err != nil {
			return Names{}, err
		}
		for i, a := range found.Answers {
			if a.Upper > 0 {
				out.Counters = append(out.Counters, names[i])
			}
		}
		if !more {
			out.Next = ""
			return out, nil
		}
		most -= len(names)
		out.Next = names[len(names)-1]
		if len(out.Counters) == q.Limit || most == 0 {
			break
		}
	}
	return out, nil
}

// namesAfter returns the first most listed names after a name, or some of them, and reports
// whether there are more. If there are more, it returns at least one name.
func (r *Reader) namesAfter(ctx context.Context, l Layout, longest Range, prefix, after string, most int) (names []string, more bool, err error) {
	coarsest := l.Tiers[len(l.Tiers)-1]
	// Names are spread evenly, so twice a shard's share and a few more are usually enough.
	each := 2*most/l.Shards + 16
	between := &redis.ZRangeBy{Min: "[" + prefix, Max: "(" + prefix + "\xff", Count: int64(each)} // no name has that byte
	if after >= prefix && after != "" {
		between.Min = "(" + after
	}
	var lists []*redis.StringSliceCmd
	if cmds, err := r.store.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for shard := range l.Shards {
			for set := coarsest.namesOf(coarsest.epochAt(longest.From)); set <= coarsest.namesOf(coarsest.epochAt(longest.To-1)); set++ {
				lists = append(lists, p.ZRangeByLex(ctx, r.store.keys.names(shard, set), between))
			}
		}
		return nil
	}); err != nil {
		return nil, false, fmt.Errorf("read names of %d shards: %w", l.Shards, foreignReply(cmds, err))
	}
	// If a list was cut off, it may go on after its last name, so the names are known only up to there.
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
		return names[:most], true, nil
	}
	return names, more, nil
}
