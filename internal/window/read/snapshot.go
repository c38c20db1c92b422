package read

import (
	"math"
	"slices"
	"time"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

type snapshot struct {
	keys   schema.Keys
	dir    *schema.Directory
	plans  []window.Plan
	at     instant                 // the moment that the plans are for
	clock  int64                   // the latest of the servers' clocks when everything had been read, Unix milliseconds
	shards []*progress             // by shard; nil for one that no plan is about
	all    *progress               // of all of these together
	claims map[string]schema.Claim // by stream
	cells  []window.PlanCells      // by plan
	counts [][]int64               // by plan: of its unions
}

func (s *snapshot) parse(need readPlan, t *trip) (err error) {
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
		cursors := make([]cluster.Reply, len(s.dir.Streams))
		for i := range cursors {
			cursors[i] = t.cursors.reply(keys[i])
		}
		keys = keys[len(cursors):]
		if s.shards[shard], err = parseProgress(s.dir, cursors, s.claims); err != nil {
			return err
		}
		s.all = s.all.with(s.shards[shard])
	}
	var hashes [hashKinds][][]window.StoredCell
	for kind := range hashes {
		keys := need.hashes[kind].keys
		hashes[kind] = make([][]window.StoredCell, len(keys))
		for i, key := range keys {
			if hashes[kind][i], err = s.cellsIn(hashKind(kind), t.hashes[kind].reply(key)); err != nil {
				return err
			}
			if hashKind(kind) == sparseLog {
				if err := t.checkLog(key); err != nil {
					return err
				}
			}
		}
	}
	s.assignCells(need, hashes)
	return s.assignCounts(need, t)
}

func (s *snapshot) cellsIn(kind hashKind, reply cluster.Reply) ([]window.StoredCell, error) {
	switch kind {
	case sparseLog:
		return reply.Log(s.dir.Layout.NamesTier())
	case hashSum:
		n, err := reply.Sum()
		return []window.StoredCell{{Field: 0, N: n}}, err // any cell of it: all of them count in full
	}
	return reply.Cells()
}

// assignCells gives each plan the cells of its hashes.
func (s *snapshot) assignCells(need readPlan, hashes [hashKinds][][]window.StoredCell) {
	all := make(window.PlanCells, len(need.at))
	for i, at := range need.at {
		if at.index >= 0 {
			all[i] = hashes[at.kind][at.index]
		}
	}
	s.cells = make([]window.PlanCells, len(s.plans))
	for i := range s.plans {
		n := s.plans[i].HashCount()
		if s.plans[i].Shard == window.AllShards {
			s.cells[i] = make(window.PlanCells, n)
			for h := range s.cells[i] {
				s.cells[i][h], all = slices.Concat(all[:s.dir.Layout.Shards]...), all[s.dir.Layout.Shards:]
			}
			continue
		}
		s.cells[i], all = all[:n], all[n:]
	}
}

// progress returns that of the plan's shards.
func (s *snapshot) progress(p *window.Plan) *progress {
	if p.Shard == window.AllShards {
		return s.all
	}
	return s.shards[p.Shard]
}

// advance moves the snapshot to the moment when all of it had been read. It has hits stored since it was
// planned, after the end of a span that ends now. If that moment needs other hashes, the error is ErrStale.
func (s *snapshot) advance(plan planner) error {
	if s.clock <= s.at.milli {
		return nil
	}
	later, err := plan(s.dir, s.clock)
	if err != nil {
		return err
	}
	if len(later) != len(s.plans) {
		return ErrStale // an overflow is past
	}
	for i := range later {
		if !later[i].ReadsLike(&s.plans[i]) {
			return ErrStale
		}
	}
	s.plans, s.at.milli = later, s.clock
	return nil
}

func (s *snapshot) estimate(p *window.Plan, cells window.PlanCells) window.Estimate {
	return p.Sum(cells, s.ahead(p))
}

// ahead returns up to which moment after now there may be hits, or 0; see Plan.sum.
func (s *snapshot) ahead(p *window.Plan) int64 {
	if latest := s.progress(p).latest; latest > s.clock {
		return latest
	}
	return 0 // the hits came while the question was on its way
}

func (s *snapshot) latest(p *window.Plan) int64 { return max(s.at.milli, s.ahead(p)) }

func (s *snapshot) totals() window.Answers {
	return s.answers(func(i int, p *window.Plan) window.Estimate { return s.estimate(p, s.cells[i]) })
}

// answers returns the answers with the numbers of estimate, by plan.
func (s *snapshot) answers(estimate func(i int, p *window.Plan) window.Estimate) window.Answers {
	out := window.Answers{Now: s.at.milli, AsOf: s.asOf(), Answers: make([]window.Answer, len(s.plans))}
	for i := range s.plans {
		p := &s.plans[i]
		e := estimate(i, p)
		out.Answers[i] = window.Answer{
			Estimate: e, Range: p.Range, Tier: p.Tier, Complete: s.complete(p) && !e.IsSaturated(),
			CountingSince: s.progress(p).began,
		}
	}
	return out
}

func (s *snapshot) asOf() int64 {
	var out int64
	for i := range s.plans {
		if at := s.progress(&s.plans[i]).asOf; i == 0 || at < out {
			out = at
		}
	}
	return out
}

// complete reports whether no hit of the plan's range is known to be missing.
func (s *snapshot) complete(p *window.Plan) bool {
	shard := s.progress(p)
	return shard.allRead && p.Range.From >= shard.completeSince && !p.Lacks()
}

// graceOf returns how long the plans' hashes live after the planned moment: their tiers' shortest grace.
func graceOf(plans []window.Plan) time.Duration {
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

// isAhead reports whether there may be hits after now in the cell at the end of a plan.
func (s *snapshot) isAhead(plans []window.UniquePlan) bool {
	return slices.ContainsFunc(plans, func(p window.UniquePlan) bool {
		return p.Range.To == s.at.milli && s.ahead(&p.Plan) > 0
	})
}

func (s *snapshot) assignCounts(need readPlan, t *trip) error {
	if len(need.counts) == 0 {
		return nil
	}
	counts := make([]int64, len(need.unions.keys))
	for i, key := range need.unions.keys {
		n, err := t.unions.reply(key).Number()
		if err != nil {
			return err
		}
		counts[i] = n
	}
	s.counts = make([][]int64, len(s.plans))
	rest := need.counts
	for i := range s.plans {
		s.counts[i] = make([]int64, len(s.plans[i].Unions))
		for k := range s.counts[i] {
			if rest[k] >= 0 {
				s.counts[i][k] = counts[rest[k]]
			}
		}
		rest = rest[len(s.counts[i]):]
	}
	return nil
}
