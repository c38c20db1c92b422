package limit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// MaxTogether bounds the takes of one script, which blocks Redis.
const MaxTogether = 16

// remote is the sixth and last decider. Its store decides and counts, by its own clock: with one script if it
// can, or else in parts, of which those before are undone if a later one refuses or fails.
type remote struct {
	*process
	store     store
	cluster   bool             // so takes with different hash tags need scripts of their own
	takenBack func(key string) // is called after hits of a key were given back without a take
}

// store keeps hits by key. After an error, what was asked for may have happened, or may happen later.
type store interface {
	// run runs a script about a request's takes, and returns its result for each. at is the time for the mode
	// undo, otherwise 0. rest is how many hits of each take are still to be given back, or nil for none.
	run(ctx context.Context, m mode, r request, at int64) (states []state, rest []int64, err error)
	// forget deletes a key.
	forget(ctx context.Context, key string) error
}

// mode is what a script does. lua/decide.lua has the same numbers.
type mode int

const (
	look    mode = iota
	count        // what is allowed
	force        // count without asking, up to max
	undo         // give back what was counted at a time or before
	settle       // set how many hits the takes with the ids have
	acquire      // count a share, if it is allowed, dated at its end
)

// state is a script's result for one take: the hits in the window before counting, or after giving back.
type state struct {
	fits                   bool
	lower, estimate, upper int64
	wait                   time.Duration // until it would fit
	turn                   time.Duration // until the period ends; 0 without one
	counted                int64         // hits that were counted; less than 0: that were given back
	// the date at which they were counted, Unix milliseconds by the key's time; of a slot, its score
	at                int64
	ends              int64 // of a slot: Unix milliseconds by Redis's clock
	again             bool  // it was counted, or settled with this number, before
	conflict, unknown bool  // its id was used for something else, or is not remembered
	own               int64 // with again: hits that were counted for it; of a settlement: that it added
	settled           int64 // one more than the number it was settled with; 0 if it was not
	beyond            int64 // hits of a settlement that were too many to keep
	change            int64 // of a settlement: by how much it changed the take's number in counters
}

func (m *remote) decide(ctx context.Context, r *request) (verdict, error) {
	states, err := m.decideAll(ctx, r)
	if err != nil {
		return verdict{states: states}, err
	}
	if err := idErrorOf(r, states); err != nil {
		return verdict{}, err
	}
	for i := range r.entries {
		s, extra := &states[i], r.entries[i].extra
		s.lower, s.estimate, s.upper = s.lower+extra, s.estimate+extra, s.upper+extra
	}
	return verdict{Answer: buildAnswer(r.takes, states, SourceRedis, r.count), states: states}, nil
}

// decideAll decides with one script, or in parts: MaxTogether takes, or one if keys are on several nodes. It
// checks all parts before it counts any, so that it undoes hits only if others were counted in between.
func (m *remote) decideAll(ctx context.Context, r *request) ([]state, error) {
	most := m.together(r)
	switch {
	case r.settle:
		return m.settleParts(ctx, r, most)
	case len(r.takes) <= most:
		return m.decideOnce(ctx, r)
	}
	if r.count && len(r.takes) > MaxTogether {
		check := *r
		check.count = false
		states, err := m.decideParts(ctx, check, most)
		if err != nil || refuses(r.takes, states) {
			return states, err
		}
	}
	return m.decideParts(ctx, *r, most)
}

// together returns how many of a request's takes one script may have.
func (m *remote) together(r *request) int {
	if m.cluster && slices.ContainsFunc(r.takes, func(t Take) bool {
		return hashTag(t.Caller) != hashTag(r.takes[0].Caller)
	}) {
		return 1
	}
	return MaxTogether
}

// decideOnce decides with one script. Large give-backs take several. After an error, the states returned are
// certainly given back.
func (m *remote) decideOnce(ctx context.Context, r *request) ([]state, error) {
	mode := look
	switch {
	case r.settle:
		mode = settle
	case r.share:
		mode = acquire
	case r.count:
		mode = count
	}
	states, rest, err := m.store.run(ctx, mode, *r, 0)
	for err == nil && rest != nil {
		rest, err = m.giveRest(ctx, r, states, rest)
	}
	return states, err
}

// giveRest gives back more of the hits that are still to be given back, and returns the rest.
func (m *remote) giveRest(ctx context.Context, r *request, states []state, rest []int64) ([]int64, error) {
	var part request
	var indexes []int
	for i, n := range rest {
		if n > 0 {
			take := r.takes[i]
			if take.ID == "" { // otherwise Redis has remembered the rest
				take.N = -n
			}
			part.ids = part.ids || take.ID != ""
			part.takes, part.keys, indexes = append(part.takes, take), append(part.keys, r.keys[i]), append(indexes, i)
		}
	}
	given, givenRest, err := m.store.run(ctx, count, part, 0)
	if err != nil || givenRest == nil {
		rest = nil
	} else {
		rest = make([]int64, len(r.takes))
	}
	for i := range given {
		given[i].counted += states[indexes[i]].counted
		given[i].again = states[indexes[i]].again
		states[indexes[i]] = given[i]
		if rest != nil {
			rest[indexes[i]] = givenRest[i]
		}
	}
	return rest, err
}

// decideParts decides about most takes at a time. If a part refuses or fails, it undoes those counted before.
func (m *remote) decideParts(ctx context.Context, r request, most int) ([]state, error) {
	states := make([]state, len(r.takes))
	order := partsOrder(r.takes)
	for begin := 0; begin < len(order); begin += most {
		end := min(begin+most, len(order))
		part := r.part(order[begin:end])
		got, err := m.decideOnce(ctx, &part)
		for i := range got {
			states[order[begin+i]] = got[i]
		}
		if err == nil && (!r.count || !refuses(part.takes, got)) {
			continue
		}
		r.count = false
		before, counted := r.part(order[:end]), make([]state, end)
		for i, index := range order[:end] {
			counted[i] = states[index]
			states[index].counted, states[index].ends = 0, 0
		}
		if err != nil {
			m.background.Go(func() { m.undo(before.takes, before.keys, counted) }) // Redis may not answer
			return nil, err
		}
		m.undo(before.takes, before.keys, counted)
	}
	return states, nil
}

// settleParts settles most takes at a time. Each part can be repeated, so nothing is undone.
func (m *remote) settleParts(ctx context.Context, r *request, most int) (states []state, err error) {
	for begin := 0; begin < len(r.takes); begin += most {
		indexes := make([]int, min(most, len(r.takes)-begin))
		for i := range indexes {
			indexes[i] = begin + i
		}
		part := r.part(indexes)
		got, err := m.decideOnce(ctx, &part)
		if err == nil {
			err = idErrorOf(&part, got)
		}
		if err != nil {
			if bad, ok := errors.AsType[*IDError](err); ok {
				bad.Done = r.takes[:begin]
			}
			return nil, err
		}
		states = append(states, got...)
	}
	return states, nil
}

// part returns a request about the takes at the indexes.
func (r *request) part(indexes []int) request {
	out := request{takes: make([]Take, len(indexes)), keys: make([]string, len(indexes)), count: r.count, ids: r.ids,
		settle: r.settle}
	if r.entries != nil {
		out.entries = make([]entry, len(indexes))
	}
	for i, index := range indexes {
		out.takes[i], out.keys[i] = r.takes[index], r.keys[index]
		if r.entries != nil {
			out.entries[i] = r.entries[index]
		}
	}
	return out
}

func refuses(takes []Take, states []state) bool {
	for i := range states {
		if !states[i].fits && (takes[i].Limit.Mode != Shadow || states[i].conflict) {
			return true
		}
	}
	return false
}

// partsOrder returns the order of takes that are decided in parts. Those in shadow mode come after those that
// can refuse. Give-backs come last: they always fit, and what they gave back might not be available again.
func partsOrder(takes []Take) []int {
	rank := func(i int) int {
		switch t := &takes[i]; {
		case t.N < 0:
			return 2
		case t.Limit.Mode == Shadow:
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

// undo takes back what Redis counted, and counts what it gave back. If it fails, hits stay counted, so the
// limit refuses too much, or stay given back, though the caller got no such answer.
func (m *remote) undo(takes []Take, keys []string, states []state) {
	if !slices.ContainsFunc(states, func(s state) bool { return s.counted != 0 }) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoFor)
	defer cancel()
	for i := range states {
		switch n := states[i].counted; {
		case n > 0:
			_ = m.takeBack(ctx, &takes[i], keys[i], n, states[i].at)
		case n < 0:
			_, _ = m.force(ctx, &takes[i], keys[i], -n, MaxHits) // even beyond max, because they were there before
			if takes[i].ID != "" {
				_ = m.store.forget(ctx, idKey(keys[i], takes[i].ID))
			}
		}
	}
}

// takeBack gives back the newest n hits of a key that were counted at or before the time at.
func (m *remote) takeBack(ctx context.Context, take *Take, key string, n, at int64) error {
	defer m.takenBack(key)
	for n > 0 {
		r := request{takes: []Take{*take}, keys: []string{key}, ids: take.ID != ""}
		r.takes[0].N = -n
		_, rest, err := m.store.run(ctx, undo, r, at)
		if err != nil || rest == nil {
			return err
		}
		n = rest[0]
	}
	return nil
}

// force counts n hits of a key without a check, but not beyond most. It returns how many it certainly
// counted, also with an error.
func (m *remote) force(ctx context.Context, take *Take, key string, n, most int64) (counted int64, err error) {
	limit := *take.Limit
	limit.Max = most
	for counted < n {
		part := min(n-counted, limit.MaxTake())
		r := request{takes: []Take{{Limit: &limit, N: part, Lease: take.Lease}}, keys: []string{key}}
		states, _, err := m.store.run(ctx, force, r, 0)
		if err != nil {
			return counted, err
		}
		counted += states[0].counted
		if states[0].counted < part {
			break
		}
	}
	return counted, nil
}

// buildAnswer builds the answer. counted is true if the hits of allowed takes were counted.
func buildAnswer(takes []Take, states []state, source Source, counted bool) Answer {
	out := Answer{Allowed: !refuses(takes, states), Decisions: make([]Decision, len(takes))}
	for i := range takes {
		s, n, most, shadow := &states[i], takes[i].N, takes[i].Limit.Max, takes[i].Limit.Mode == Shadow
		d := Decision{
			Take: takes[i], Allowed: s.fits || shadow, Shadow: shadow, WouldAllow: s.fits, RetryAfter: s.wait,
			Turn: s.turn, Source: source, Lower: s.lower, Upper: s.upper, change: s.counted + s.change,
			// It is certain if the smallest and the largest possible number of hits lead to the same
			// decision.
			Certain:   n <= 0 || s.again || s.fits && s.upper+n <= most || !s.fits && s.lower+n > most,
			Remaining: max(0, most-s.estimate),
		}
		if takes[i].Limit.Policy.Traits().Slots {
			d.Certain = true
			if s.ends > 0 {
				d.Ends = time.UnixMilli(s.ends).UTC()
				d.EndsIn = takes[i].Limit.Window // less what has passed since Redis was asked
			}
			if s.counted == 0 {
				n = 0 // a slot that was held before
			}
		}
		if s.settled > 0 {
			settled := s.settled - 1
			n, d.Settled, d.Over = 0, &settled, max(0, s.estimate+s.beyond-most)
		}
		if s.again {
			n, d.Repeated = 0, true
		}
		if counted && out.Allowed && s.fits && n > 0 {
			d.Lower, d.Upper, d.Remaining = d.Lower+n, d.Upper+n, d.Remaining-n
		}
		out.Decisions[i] = d
	}
	return out
}
