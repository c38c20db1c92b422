package limit

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"time"
)

const undoFor = 5 * time.Second

// ErrFull means that Redis has no memory left (maxmemory).
var ErrFull = errors.New("no memory is left in Redis for hits")

type question struct {
	takes  []Take
	keys   []string
	count  bool
	stakes []stake // as many as takes, or none
}

// besideOf returns how many hits of a take's key count in addition to those in Redis.
func besideOf(stakes []stake, i int) int64 {
	if stakes == nil {
		return 0
	}
	return stakes[i].beside
}

// ask first counts in Redis what was allowed without it, and then asks about the takes. It returns states
// with an error only if something was certainly counted or given back.
func (l *Limiter) ask(ctx context.Context, q *question) ([]state, error) {
	bounded, cancel := context.WithTimeout(ctx, l.timeout())
	defer cancel()
	for i := range q.stakes {
		if err := l.tell(bounded, q, i); err != nil {
			return nil, err
		}
	}
	states, err := l.askStore(bounded, q)
	for i := range states {
		states[i].shift(besideOf(q.stakes, i))
	}
	return states, err
}

func isLate(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// tell counts in Redis what was allowed without it. If Redis is full or has max hits, the rest stays here.
func (l *Limiter) tell(ctx context.Context, q *question, i int) error {
	s, take := &q.stakes[i], &q.takes[i]
	for s.claimed > 0 {
		n := min(s.claimed, mostAtOnce(take.Limit.Policy))
		counted, err := l.store.force(ctx, take, q.keys[i], n, take.Limit.Max)
		if err == nil {
			l.local.told(s, counted)
		}
		if err != nil || counted < n {
			l.local.release(s)
			if isFull(err) {
				return nil
			}
			return err
		}
	}
	return nil
}

// mostAtOnce bounds the hits that one script may count.
func mostAtOnce(p Policy) int64 {
	if p == Log {
		return MaxLogTake
	}
	return MaxHits
}

// MaxTogether bounds the takes of one script, which blocks Redis.
const MaxTogether = 16

// askStore asks with one script, or in parts: MaxTogether takes, or one if keys are on several nodes. It
// checks all parts before it counts any, so that it undoes hits only if others were counted in between.
func (l *Limiter) askStore(ctx context.Context, q *question) ([]state, error) {
	most := 1
	if l.store.together(q.takes) {
		most = MaxTogether
		if len(q.takes) <= most {
			return l.store.decide(ctx, q.takes, q.keys, q.stakes, q.count)
		}
	}
	if q.count && len(q.takes) > MaxTogether {
		states, err := l.askParts(ctx, q, most, false)
		if err != nil || anyRefuses(q.takes, states) {
			return states, err
		}
	}
	return l.askParts(ctx, q, most, q.count)
}

// askParts asks about most takes at a time. If a part refuses or fails, it undoes those counted before.
func (l *Limiter) askParts(ctx context.Context, q *question, most int, count bool) ([]state, error) {
	states := make([]state, len(q.takes))
	order := orderApart(q.takes)
	all := true
	for begin := 0; begin < len(order); begin += most {
		end := min(begin+most, len(order))
		places := order[begin:end]
		part := q.part(places)
		got, err := l.store.decide(ctx, part.takes, part.keys, part.stakes, count && all)
		for i := range got {
			states[places[i]] = got[i]
		}
		if err == nil && (!all || !anyRefuses(part.takes, got)) {
			continue
		}
		all = false
		counted, before := q.part(order[:end]), make([]state, end)
		for i, place := range order[:end] {
			before[i] = states[place]
			states[place].counted, states[place].ends = 0, 0
		}
		if err == nil {
			l.undo(counted.takes, counted.keys, before)
			continue
		}
		l.asking.Go(func() { l.undo(counted.takes, counted.keys, before) }) // Redis may not answer
		return nil, err
	}
	return states, nil
}

func (q *question) part(places []int) question {
	out := question{takes: make([]Take, len(places)), keys: make([]string, len(places)), count: q.count}
	if q.stakes != nil {
		out.stakes = make([]stake, len(places))
	}
	for i, place := range places {
		out.takes[i], out.keys[i] = q.takes[place], q.keys[place]
		if q.stakes != nil {
			out.stakes[i] = q.stakes[place]
		}
	}
	return out
}

func anyRefuses(takes []Take, states []state) bool {
	for i := range states {
		if !states[i].fits && !takes[i].Limit.shadow() {
			return true
		}
	}
	return false
}

// orderApart returns the order of takes that are asked in parts. Those in shadow mode come after those that
// can refuse. Give-backs come last: they always fit, and what they gave back might not be available again.
func orderApart(takes []Take) []int {
	rank := func(i int) int {
		switch t := &takes[i]; {
		case t.N < 0:
			return 2
		case t.Limit.shadow():
			return 1
		}
		return 0
	}
	out := make([]int, len(takes))
	for i := range out {
		out[i] = i
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(rank(a), rank(b)) })
	return out
}

// told is the outcome that the caller got without Redis.
type told int

const (
	toldAllowed told = iota
	toldRefused      // or that Redis does not decide
	toldNothing      // the caller was gone
)

// settle reconciles what Redis certainly counted with the caller's outcome: it undoes what was counted for a
// refused take, but nothing that may not have been counted, because that would allow too much.
func (l *Limiter) settle(q *question, states []state, caller told) {
	switch caller {
	case toldAllowed:
		l.local.learnPlaces(q.takes, q.keys, states)
	case toldRefused:
		l.local.end(q.takes, q.keys, q.stakes, nil, l.now())
		l.undo(q.takes, q.keys, states)
	default:
		l.local.end(q.takes, q.keys, q.stakes, states, l.now())
		l.undo(q.takes, q.keys, placesOf(q.takes, states)) // no caller knows that they are held
	}
}

func placesOf(takes []Take, states []state) []state {
	out := slices.Clone(states)
	for i := range out {
		if takes[i].Limit.Policy != Concurrent {
			out[i].counted = 0
		}
	}
	return out
}

// undo takes back what Redis counted, and counts what it gave back. If it fails, hits stay counted, so the
// limit refuses too much, or stay given back, though the caller was not told so.
func (l *Limiter) undo(takes []Take, keys []string, states []state) {
	if !slices.ContainsFunc(states, func(s state) bool { return s.counted != 0 }) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoFor)
	defer cancel()
	for i := range states {
		n := states[i].counted
		switch {
		case n > 0:
			_ = l.store.takeBack(ctx, &takes[i], keys[i], n, states[i].at)
		case n < 0:
			l.countAgain(ctx, &takes[i], keys[i], -n)
		}
		if n != 0 {
			l.denials.forget(keys[i])
		}
	}
}

// countAgain counts hits that were given back, even beyond max, because they were there before.
func (l *Limiter) countAgain(ctx context.Context, take *Take, key string, n int64) {
	for n > 0 {
		part := min(n, mostAtOnce(take.Limit.Policy))
		_, err := l.store.force(ctx, take, key, part, MaxHits)
		if err != nil {
			return
		}
		n -= part
	}
}
