package window

import (
	"errors"
	"math"
	"slices"
)

// Uniques are the number of unique values, estimated by PFCOUNT over the union of a range's cells. A union
// cannot subtract, so a cell that an edge cuts is in or out: Lower counts the cells inside the range, Upper
// those that touch it, and the estimate lies between them, by the share of time. Both have the standard error
// uniqueSigma, so, unlike those of a total, these bounds only hold with a confidence.

// UniquePlan covers a range with unions of unique cells.
type UniquePlan struct {
	Plan
	Cover uniqueCover
}

const (
	// uniqueSigma is the relative standard error of Redis's estimate: 1.04/√m for m = 16,384 registers.
	uniqueSigma = 1.04 / 128
	// uniqueDeviations is how many standard errors the bounds reach: 95.4 % of a normal distribution.
	uniqueDeviations = 2
	// UniqueConfidence is how often the truth lies within the bounds, at least.
	UniqueConfidence = 0.95
)

// UniqueCells is what a *TooMuchError counts if a call reads too many unique cells.
const UniqueCells = "unique cells"

// ErrNoUniques means that the namespace has no unique tiers.
var ErrNoUniques = errors.New("this namespace counts no uniques: its workers were started with UNIQUE_TIERS=off, as " +
	"make run starts its own if it finds no redis-server, because its stand-in for Redis cannot count them")

type unionCell struct {
	Tier   Tier
	Number int64 // since 1970
}

func (c unionCell) start() int64 { return c.Tier.CellStart(c.Number) }

func (c unionCell) end() int64 { return c.Tier.CellStart(c.Number + 1) }

// Union is a set of unique cells whose registers Redis combines into one count.
type Union []unionCell

// UniqueLayout returns a layout with the unique tiers as its tiers. Their hashes would hold one cell.
func (l Layout) UniqueLayout() (Layout, error) {
	if len(l.UniqueTiers) == 0 {
		return Layout{}, ErrNoUniques
	}
	return Layout{Tiers: l.UniqueTiers.Cut(1), Shards: l.Shards}, nil
}

// uniqueGap is a part of a range that contains no whole cell. Cells that reach beyond it cover it.
type uniqueGap struct {
	Range
	cells   []unionCell // they hold the gap; one, as a rule
	covered int64       // how many milliseconds of these cells other cells of the range have, too
}

// share returns which part (0 to 1) of what a gap's cells add is the gap's, by time. No hit is after latest.
func (g *uniqueGap) share(latest int64) float64 {
	whole := -g.covered
	for _, c := range g.cells {
		whole += max(0, min(c.end(), latest)-c.start())
	}
	length := g.To - g.From
	if whole <= length {
		return 1
	}
	return float64(length) / float64(whole)
}

type uniqueCover struct {
	inside []stretch // of whole cells
	Gaps   []uniqueGap
}

// coverUniques returns as few cells as possible. A coarse cell inside the range replaces finer ones, because
// a tier has every hit of a time that it holds. Finer tiers cover the rest, as far as they still hold it. If
// open is set, the range ends now, and the cells of now have no later hits.
func coverUniques(l Layout, r Range, now int64, open bool) (out uniqueCover) {
	coverFrom(l, len(l.Tiers)-1, r, now, open, &out)
	for i := range out.Gaps {
		g := &out.Gaps[i]
		g.cells = holdingUniques(l, g.Range, now)
		for _, c := range g.cells {
			for _, s := range out.inside {
				g.covered += max(0, min(c.end(), s.To)-max(c.start(), s.From))
			}
		}
	}
	return out
}

func coverFrom(l Layout, tier int, r Range, now int64, open bool, out *uniqueCover) {
	if r.From >= r.To {
		return
	}
	if tier < 0 {
		out.Gaps = append(out.Gaps, uniqueGap{Range: r})
		return
	}
	t := l.Tiers[tier]
	whole := wholeCells(t, Range{max(r.From, t.HoldsFrom(now)), r.To})
	if open && r.To == now {
		whole.To = r.To
	}
	if whole.From >= whole.To {
		coverFrom(l, tier-1, r, now, open, out)
		return
	}
	coverFrom(l, tier-1, Range{r.From, whole.From}, now, open, out)
	first, last := EpochsOf(t, whole)
	out.inside = append(out.inside, stretch{whole, t, first, last})
	coverFrom(l, tier-1, Range{whole.To, r.To}, now, open, out)
}

func holdingUniques(l Layout, r Range, now int64) (out []unionCell) {
	t := l.Tiers[len(l.Tiers)-1]
	for _, finer := range l.Tiers {
		if finer.HoldsSince(r.From, now) {
			t = finer
			break
		}
	}
	first, last := EpochsOf(t, r)
	for n := first; n <= last; n++ {
		out = append(out, unionCell{t, n})
	}
	return out
}

// unions returns the unions to count: the cells inside, and then repeatedly with the cells of one gap more.
func (c *uniqueCover) unions() (out []Union) {
	var all Union
	for _, s := range c.inside {
		for n := s.firstEpoch; n <= s.lastEpoch; n++ {
			all = append(all, unionCell{s.Tier, n})
		}
	}
	out = append(out, all)
	for _, g := range c.Gaps {
		all = slices.Clone(all)
		for _, cell := range g.cells {
			if !slices.Contains(all, cell) {
				all = append(all, cell)
			}
		}
		out = append(out, all)
	}
	return out
}

func (c *uniqueCover) Estimate(counts []int64, latest int64) Estimate {
	total, most := float64(counts[0]), counts[0]
	for i := range c.Gaps {
		if n := counts[1+i]; n > most {
			total += c.Gaps[i].share(latest) * float64(n-most)
			most = n
		}
	}
	out := Estimate{Total: int64(math.Round(total)), Lower: leastUniques(counts[0]), Upper: mostUniques(most)}
	out.Total = min(max(out.Total, out.Lower), out.Upper)
	return out
}

// leastUniques and mostUniques bound the number of unique values if Redis replies n. An error of less than
// a half does not count, so for small n the bounds are n.
func leastUniques(n int64) int64 {
	return max(min(n, 1), int64(math.Round(float64(n)/(1+uniqueDeviations*uniqueSigma))))
}

func mostUniques(n int64) int64 {
	return int64(math.Round(float64(n) / (1 - uniqueDeviations*uniqueSigma)))
}

// PlanUniques covers a question's range. Its last argument reports whether hits may be dated later than now,
// so that a range that ends now cuts the cell of now.
func (l Layout) PlanUniques(q Question, now int64, doubt bool) (UniquePlan, error) {
	unique, err := l.UniqueLayout()
	if err != nil {
		return UniquePlan{}, err
	}
	asked, err := q.Span.At(now)
	if err != nil {
		return UniquePlan{}, err
	}
	tier, err := chooseReaching(unique, asked, now)
	if err != nil {
		return UniquePlan{}, NameUniques(err)
	}
	p := UniquePlan{NewPlan(unique, q.Counter, asked, now, tier), coverUniques(unique, asked, now, asked.To == now &&
		!doubt)}
	p.Plan.Unions = p.Cover.unions()
	return p, nil
}

// NameUniques makes an error about a range that no tier reaches name the unique tiers.
func NameUniques(err error) error {
	var far *outOfReachError
	if errors.As(err, &far) {
		far.uniques = true
	}
	return err
}

// CoverSteps covers each step of a series, as far as it has passed, and puts the unions into the plan.
func CoverSteps(l Layout, p *SeriesPlan, now int64) {
	p.Stretches, p.finer, p.Unions, p.Covers = nil, nil, nil, make([]uniqueCover, p.Points())
	for i := range p.Covers {
		r := p.stepRange(i)
		if r.To = min(r.To, now); r.From < r.To {
			p.Covers[i] = coverUniques(l, r, now, r.To == now)
		}
		p.Unions = append(p.Unions, p.Covers[i].unions()...)
	}
}

func (p *SeriesPlan) stepRange(step int) Range {
	if p.edges != nil {
		return Range{p.edges[step], p.edges[step+1]}
	}
	from := p.Range.From + int64(step)*p.Step
	return Range{from, min(from+p.Step, p.Range.To)}
}
