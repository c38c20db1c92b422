package window

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// The names of counters. Beside the expiry of a counter's coarsest hash goes its
// name, into a sorted set of the shard and the hash's epoch. So whatever has a
// hash has its name listed, in the same transaction, and a name costs nothing
// while its hash is in use. The set expires when the last hash of its epoch can.

// namesDeadline is the Unix second at which the names of an epoch expire: the
// latest deadline of its hashes.
func (t Tier) namesDeadline(epoch int64) int64 { return t.deadline(epoch, math.MaxUint64) }

// newNames are the names that a transaction lists, by epoch of the coarsest tier.
type newNames map[int64][]redis.Z

// write lists the names and renews the expiries, which the transaction must
// have after all that they belong to.
func (n newNames) write(ctx context.Context, p redis.Pipeliner, w *Writer) {
	coarsest := w.layout.Tiers[len(w.layout.Tiers)-1]
	for epoch, names := range n {
		key := w.store.keys.names(w.shard, epoch)
		p.ZAdd(ctx, key, names...)
		p.ExpireAt(ctx, key, time.Unix(coarsest.namesDeadline(epoch), 0))
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
	Counters      []string
	// Next is what to ask for as After, where there may be more. A page can be
	// shorter than its limit, even empty, and have a next one.
	Next string
}

// maxNameRounds bounds the work for a page where counters have names and no
// hits any more.
const maxNameRounds = 8

// Names lists the counters that may have hits in the longest window before now.
// Errors are as those of Answer. MaxCells makes pages shorter; it is a
// *TooMuchError where it does not allow one counter.
func (r *Reader) Names(ctx context.Context, q NamesQuestion) (out Names, err error) {
	err = r.surveyed(ctx, func(on survey) error {
		out, err = r.names(ctx, on, q)
		return err
	})
	return out, err
}

func (r *Reader) names(ctx context.Context, on survey, q NamesQuestion) (Names, error) {
	layout := on.known.layout
	coarsest := layout.Tiers[len(layout.Tiers)-1]
	longest := Last(coarsest.Window)
	plans, err := r.plan(layout, []Question{{"", longest}}, on.at.milli)
	if err != nil {
		return Names{}, err
	}
	plan := plans[0]
	most, err := r.affordable(plan, 1)
	if err != nil {
		return Names{}, err
	}
	out := Names{AsOf: on.asOf(), Complete: on.complete(plan.Range), CountingSince: on.countingSince(), Next: q.After}
	for range maxNameRounds {
		names, more, err := r.namesAfter(ctx, layout, plan.Range, q.Prefix, out.Next, min(q.Limit-len(out.Counters), most))
		if err != nil {
			return Names{}, err
		}
		if !r.holds(on, time.Duration(coarsest.grace())*time.Millisecond) {
			return Names{}, errStale
		}
		questions := make([]Question, len(names))
		for i, name := range names {
			questions[i] = Question{name, longest}
		}
		found, err := r.answerAt(ctx, on, questions)
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
		if out.Next = names[len(names)-1]; len(out.Counters) == q.Limit || most == 0 {
			break
		}
	}
	return out, nil
}

// namesAfter is the first most listed names after a name, or some of them, and
// whether there are more. There is at least one where there are more.
func (r *Reader) namesAfter(ctx context.Context, l Layout, longest Range, prefix, after string, most int) (names []string, more bool, err error) {
	coarsest := l.Tiers[len(l.Tiers)-1]
	// Names are spread evenly: twice the share of a shard, and some, is mostly enough.
	each := 2*most/l.Shards + 16
	between := &redis.ZRangeBy{Min: "[" + prefix, Max: "(" + prefix + "\xff", Count: int64(each)} // no name has that byte
	if after >= prefix && after != "" {
		between.Min = "(" + after
	}
	var lists []*redis.StringSliceCmd
	if cmds, err := r.store.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for shard := range l.Shards {
			for epoch := coarsest.epochAt(longest.From); epoch <= coarsest.epochAt(longest.To-1); epoch++ {
				lists = append(lists, p.ZRangeByLex(ctx, r.store.keys.names(shard, epoch), between))
			}
		}
		return nil
	}); err != nil {
		return nil, false, fmt.Errorf("read names of %d shards: %w", l.Shards, foreignReply(cmds, err))
	}
	// A list that was cut off may go on after its last name: nothing beyond that is known.
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
