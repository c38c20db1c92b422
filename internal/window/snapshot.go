package window

import (
	"math"
	"time"
)

type snapshot struct {
	keys   Keys
	dir    *Directory
	plans  []Plan
	at     instant          // the moment that the plans are for
	clock  int64            // the latest of the servers' clocks when everything had been read, Unix milliseconds
	shards []*progress      // by shard; nil for one that no plan is about
	claims map[string]Claim // by stream
	cells  []PlanCells      // by plan
	counts [][]int64        // by plan: of its unions
}

func (s *snapshot) parse(need need, t *trip) (err error) {
	claims, err := t.idle.Hash()
	if err != nil {
		return err
	}
	if s.claims, err = s.keys.ParseClaims(s.dir.Listed, claims); err != nil {
		return err
	}
	s.shards = make([]*progress, s.dir.Layout.Shards)
	keys := need.cursors.keys
	for _, shard := range need.shards {
		cursors := make([]Reply, len(s.dir.Streams))
		for i := range cursors {
			cursors[i] = t.cursors.reply(keys[i])
		}
		keys = keys[len(cursors):]
		if s.shards[shard], err = parseProgress(s.dir, cursors, s.claims); err != nil {
			return err
		}
	}
	hashes := make([][]StoredCell, len(need.hashes.keys))
	for i, key := range need.hashes.keys {
		if hashes[i], err = t.hashes.reply(key).Cells(); err != nil {
			return err
		}
	}
	sums := make([][]StoredCell, len(need.sums.keys))
	for i, key := range need.sums.keys {
		n, err := t.sums.reply(key).Sum()
		if err != nil {
			return err
		}
		sums[i] = []StoredCell{{Field: 0, N: n}} // any cell of it: all of them count in full
	}
	s.deal(need, hashes, sums)
	return s.dealCounts(need, t)
}

// deal gives each plan the cells of its hashes.
func (s *snapshot) deal(need need, hashes, sums [][]StoredCell) {
	all := make(PlanCells, len(need.at))
	for i, at := range need.at {
		if at < 0 {
			all[i] = sums[^at]
		} else {
			all[i] = hashes[at]
		}
	}
	s.cells = make([]PlanCells, len(s.plans))
	for i := range s.plans {
		n := s.plans[i].HashCount()
		s.cells[i], all = all[:n], all[n:]
	}
}

// settle moves the snapshot to the moment when all of it had been read. It has hits stored since it was
// planned, after the end of a span that ends now. If that moment needs other hashes, the error is ErrStale.
func (s *snapshot) settle(plan planner) error {
	if s.clock <= s.at.milli {
		return nil
	}
	later, err := plan(s.dir.Layout, s.clock)
	if err != nil {
		return err
	}
	for i := range later {
		if !later[i].ReadsLike(&s.plans[i]) {
			return ErrStale
		}
	}
	s.plans, s.at.milli = later, s.clock
	return nil
}

func (s *snapshot) estimate(p *Plan, cells PlanCells) Estimate {
	return p.Sum(cells, s.ahead(p))
}

// ahead returns up to which moment after now there may be hits, or 0; see Plan.sum.
func (s *snapshot) ahead(p *Plan) int64 {
	if latest := s.shards[p.Shard].latest; latest > s.clock {
		return latest
	}
	return 0 // the hits came while the question was on its way
}

func (s *snapshot) latest(p *Plan) int64 { return max(s.at.milli, s.ahead(p)) }

func (s *snapshot) totals() Answers {
	return s.answers(func(i int, p *Plan) Estimate { return s.estimate(p, s.cells[i]) })
}

// answers returns the answers with the numbers of estimate, by plan.
func (s *snapshot) answers(estimate func(i int, p *Plan) Estimate) Answers {
	out := Answers{Now: s.at.milli, AsOf: s.asOf(), Answers: make([]Answer, len(s.plans))}
	for i := range s.plans {
		p := &s.plans[i]
		out.Answers[i] = Answer{
			Estimate: estimate(i, p), Range: p.Range, Tier: p.Tier, Complete: s.complete(p), CountingSince: s.shards[p.Shard].began,
		}
	}
	return out
}

func (s *snapshot) asOf() int64 {
	var out int64
	for i := range s.plans {
		if at := s.shards[s.plans[i].Shard].asOf; i == 0 || at < out {
			out = at
		}
	}
	return out
}

// complete reports whether no hit of the plan's range is known to be missing.
func (s *snapshot) complete(p *Plan) bool {
	shard := s.shards[p.Shard]
	return shard.allRead && p.Range.From >= shard.completeSince && !p.Lacks()
}

// graceOf returns how long the plans' hashes live after the planned moment: their tiers' shortest grace.
func graceOf(plans []Plan) time.Duration {
	out := int64(math.MaxInt64 / time.Millisecond)
	for i := range plans {
		for _, s := range plans[i].Stretches {
			out = min(out, s.Tier.Grace())
		}
		for _, u := range plans[i].Unions {
			for _, c := range u {
				out = min(out, c.Tier.Grace())
			}
		}
	}
	return time.Duration(out) * time.Millisecond
}
