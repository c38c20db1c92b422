package window

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/unique"
)

// Uniques are the number of different values, estimated by PFCOUNT over the union of a range's cells. A union
// cannot subtract, so a cell that an edge cuts is in or out: Lower counts the cells inside the range, Upper
// those that touch it, and the estimate lies between them, by the share of time. Both have the standard error
// uniqueSigma, so, unlike those of a total, these bounds only hold with a confidence.

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
var ErrNoUniques = errors.New("this namespace counts no uniques: its workers were started with UNIQUE_TIERS=off, as make run starts its own if it finds no redis-server, because its stand-in for Redis cannot count them")

type unionCell struct {
	Tier   Tier
	Number int64 // since 1970
}

func (c unionCell) start() int64 { return c.Tier.CellStart(c.Number) }
func (c unionCell) end() int64   { return c.Tier.CellStart(c.Number + 1) }

type Union []unionCell

// keySeparator separates the keys of a union. No name has control characters.
const keySeparator = "\n"

func unionKey(u Union, k Keys, p *Plan) string {
	var out strings.Builder
	for i, c := range u {
		if i > 0 {
			out.WriteString(keySeparator)
		}
		out.WriteString(k.Unique(p.Shard, c.Tier, c.Number, p.Counter))
	}
	return out.String()
}

// queueUnions queues a PFCOUNT for each union. Its keys are of one shard, and so of one slot.
func (s *keySet) queueUnions(ctx context.Context, p redis.Pipeliner) {
	s.replies = make([]*redis.RawCmd, len(s.keys))
	for i, u := range s.keys {
		args := []any{"pfcount"}
		for key := range strings.SplitSeq(u, keySeparator) {
			args = append(args, key)
		}
		s.replies[i] = redis.NewRawCmd(ctx, args...)
		_ = p.BatchProcess(ctx, s.replies[i])
	}
}

// countUnion is PFCOUNT key by key: while a slot moves, keys are on two nodes, and neither has all.
func (c *Client) countUnion(ctx context.Context, keys []any) (int64, error) {
	cells := make([]*redis.StringCmd, len(keys))
	_, err := c.cluster.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			cells[i] = p.Get(ctx, key.(string))
		}
		return nil
	})
	var all unique.Sketch
	for i, cell := range cells {
		text, said := cell.Result()
		if errors.Is(said, redis.Nil) {
			continue
		}
		if said != nil {
			return 0, cmp.Or(WrapForeign(keys[i].(string), said), err)
		}
		one, bad := unique.Decode(text)
		if bad != nil {
			return 0, &ForeignError{keys[i].(string), bad}
		}
		all.Merge(one)
	}
	return int64(math.Round(all.Estimate())), nil
}

func (s *snapshot) dealCounts(need need, t *trip) error {
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

// nameForeign finds out which key of a union is not Tallyroll's, which Redis's error does not show.
func (r *Reader) nameForeign(ctx context.Context, err error) error {
	var foreign *ForeignError
	if !errors.As(err, &foreign) || !strings.Contains(foreign.Key, keySeparator) {
		return err
	}
	for key := range strings.SplitSeq(foreign.Key, keySeparator) {
		switch err := r.Store.Client.PFCount(ctx, key).Err(); {
		case IsAboutValue(err):
			return &ForeignError{key, err}
		case err != nil: // it may be this key or a later one
			return fmt.Errorf("find the unique cell that is not Tallyroll's: %w", err)
		}
	}
	return fmt.Errorf("a unique cell was not Tallyroll's, and is gone: %w", foreign.Err)
}

// counts reports whether a key is that of one of the plan's unique cells.
func countsKey(p *Plan, k Keys, key string) bool {
	for _, u := range p.Unions {
		for _, c := range u {
			if k.Unique(p.Shard, c.Tier, c.Number, p.Counter) == key {
				return true
			}
		}
	}
	return false
}

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
func (l Layout) coverUniques(r Range, now int64, open bool) (out uniqueCover) {
	l.coverFrom(len(l.Tiers)-1, r, now, open, &out)
	for i := range out.Gaps {
		g := &out.Gaps[i]
		g.cells = l.holdingUniques(g.Range, now)
		for _, c := range g.cells {
			for _, s := range out.inside {
				g.covered += max(0, min(c.end(), s.To)-max(c.start(), s.From))
			}
		}
	}
	return out
}

func (l Layout) coverFrom(tier int, r Range, now int64, open bool, out *uniqueCover) {
	if r.From >= r.To {
		return
	}
	if tier < 0 {
		out.Gaps = append(out.Gaps, uniqueGap{Range: r})
		return
	}
	t := l.Tiers[tier]
	whole := t.wholeCells(Range{max(r.From, t.HoldsFrom(now)), r.To})
	if open && r.To == now {
		whole.To = r.To
	}
	if whole.From >= whole.To {
		l.coverFrom(tier-1, r, now, open, out)
		return
	}
	l.coverFrom(tier-1, Range{r.From, whole.From}, now, open, out)
	first, last := t.EpochsOf(whole)
	out.inside = append(out.inside, stretch{whole, t, first, last})
	l.coverFrom(tier-1, Range{whole.To, r.To}, now, open, out)
}

func (l Layout) holdingUniques(r Range, now int64) (out []unionCell) {
	t := l.Tiers[len(l.Tiers)-1]
	for _, finer := range l.Tiers {
		if finer.HoldsSince(r.From, now) {
			t = finer
			break
		}
	}
	first, last := t.EpochsOf(r)
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

// leastUniques and mostUniques bound the number of different values if Redis replies n. An error of less than
// a half is none, so for small n the bounds are n.
func leastUniques(n int64) int64 {
	return max(min(n, 1), int64(math.Round(float64(n)/(1+uniqueDeviations*uniqueSigma))))
}

func mostUniques(n int64) int64 {
	return int64(math.Round(float64(n) / (1 - uniqueDeviations*uniqueSigma)))
}

type UniquePlan struct {
	Plan
	Cover uniqueCover
}

// PlanUniques covers a question's range. doubt is whether hits may be dated later than now, so that a range
// that ends now cuts the cell of now.
func (l Layout) PlanUniques(q Question, now int64, doubt bool) (UniquePlan, error) {
	unique, err := l.UniqueLayout()
	if err != nil {
		return UniquePlan{}, err
	}
	asked, err := q.Span.At(now)
	if err != nil {
		return UniquePlan{}, err
	}
	tier, err := unique.reaching(asked, now)
	if err != nil {
		return UniquePlan{}, NameUniques(err)
	}
	p := UniquePlan{unique.NewPlan(q.Counter, asked, now, tier), unique.coverUniques(asked, now, asked.To == now && !doubt)}
	p.Plan.Unions = p.Cover.unions()
	return p, nil
}

func NameUniques(err error) error {
	var far *outOfReachError
	if errors.As(err, &far) {
		far.uniques = true
	}
	return err
}

// Uniques estimates the number of different values. The bounds hold with UniqueConfidence. Its errors are
// those of Answer. If the clock of NATS is ahead of Redis's, it asks Redis twice.
func (r *Reader) Uniques(ctx context.Context, questions []Question) (Answers, error) {
	found, plans, err := r.askUniques(ctx, questions, false)
	if err == nil && found.isAhead(plans) {
		found, plans, err = r.askUniques(ctx, questions, true)
	}
	if err != nil {
		return Answers{}, err
	}
	return found.answers(func(i int, p *Plan) Estimate { return plans[i].Cover.Estimate(found.counts[i], found.latest(p)) }), nil
}

// isAhead reports whether there may be hits after now in the cell at the end of a plan.
func (s *snapshot) isAhead(plans []UniquePlan) bool {
	return slices.ContainsFunc(plans, func(p UniquePlan) bool { return p.Range.To == s.at.milli && s.ahead(&p.Plan) > 0 })
}

func (r *Reader) askUniques(ctx context.Context, questions []Question, doubt bool) (found snapshot, plans []UniquePlan, err error) {
	found, err = r.ask(ctx, func(l Layout, now int64) ([]Plan, error) {
		plans = make([]UniquePlan, len(questions))
		out := make([]Plan, len(questions))
		for i, q := range questions {
			if plans[i], err = l.PlanUniques(q, now, doubt); err != nil {
				return nil, &QuestionError{i, err}
			}
			out[i] = plans[i].Plan
		}
		return out, nil
	})
	return found, plans, err
}

// UniqueSeries estimates the number of different values per step of Series, in cells of the unique tiers,
// with bounds that hold with UniqueConfidence. Its errors are those of Answer.
func (r *Reader) UniqueSeries(ctx context.Context, questions []SeriesQuestion) ([]Series, error) {
	found, steps, err := r.askSeries(ctx, questions, true)
	if err != nil {
		return nil, err
	}
	out := make([]Series, len(steps))
	for i := range steps {
		p := &steps[i]
		counts, estimates := found.counts[i], make([]Estimate, len(p.Covers))
		for k := range p.Covers {
			c := &p.Covers[k]
			estimates[k] = c.Estimate(counts, found.latest(&p.Plan))
			counts = counts[1+len(c.Gaps):]
		}
		out[i] = found.series(p, questions[i]).WithCounts(estimates, true)
	}
	return out, nil
}

// CoverSteps covers each step of a series, as far as it has passed, and puts the unions into the plan.
func (l Layout) CoverSteps(p *SeriesPlan, now int64) {
	p.Stretches, p.finer, p.Unions, p.Covers = nil, nil, nil, make([]uniqueCover, p.Points())
	for i := range p.Covers {
		r := p.stepRange(i)
		if r.To = min(r.To, now); r.From < r.To {
			p.Covers[i] = l.coverUniques(r, now, r.To == now)
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
