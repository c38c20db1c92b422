package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"tallyroll/internal/window"
)

// Reader is the part of window.Reader that rules use.
type Reader interface {
	Look(ctx context.Context) (window.Layout, error)
	Answer(ctx context.Context, questions []window.Question) (window.Answers, error)
	Top(ctx context.Context, asked window.Span, limit int) (window.Top, error)
	Names(ctx context.Context, q window.NamesQuestion) (window.Names, error)
}

// eye queries the counters of rules and evaluates them. One goroutine uses it.
type eye struct {
	reader Reader
	maxSum int // counters that one rule adds up
}

const (
	// lookers bounds the concurrent queries for names and largest counters.
	lookers = 8
	// maxQuestions bounds the counters and windows of one round trip: their replies take some megabytes.
	maxQuestions = 5000
)

type view struct {
	at      int64 // by Redis's clock, Unix milliseconds
	seen    []Sighting
	refused map[*Rule]error // rules with windows that no tier holds
}

// part is a counter in a window that ends now or, if previous is set, in the window before that.
type part struct {
	counter string
	length  time.Duration
	before  bool
}

func (p part) question() window.Question {
	if p.before {
		return window.Question{Counter: p.counter, Span: window.Span{To: window.Now, Calendar: before(p.length)}}
	}
	return window.Question{Counter: p.counter, Span: window.Last(p.length)}
}

func (r *Rule) parts(counter string) []part {
	out := []part{{counter, r.Window, false}}
	if r.Condition.Kind == ByPercent {
		out = append(out, part{counter, r.Window, true})
	}
	return out
}

// listing holds the counters of a rule with prefix or top.
type listing struct {
	counters      []string
	asOf          int64
	completeSince int64
	countingSince int64
	why           string // why the rule cannot be queried; empty: it can
}

// look evaluates all rules. kept returns the keys of a rule whose state is not idle. After an error, which is
// Redis's, every state is unknown.
func (e *eye) look(ctx context.Context, rules []*Rule, kept func(*Rule) []string) (view, error) {
	out, err := e.lookAt(ctx, rules, kept)
	if errors.Is(err, window.ErrNoLayout) { // no worker has ever counted here, so Redis's clock was not read
		at := time.Now().UnixMilli()
		return view{at: at, seen: allUnknown(rules, nil, at, reasonEmpty)}, nil
	}
	return out, err
}

func (e *eye) lookAt(ctx context.Context, rules []*Rule, kept func(*Rule) []string) (view, error) {
	layout, err := e.reader.Look(ctx)
	if err != nil {
		return view{}, err
	}
	out := view{refused: make(map[*Rule]error)}
	var asked []*Rule
	for _, r := range rules {
		if err := r.check(layout); err != nil {
			out.refused[r] = err
		} else {
			asked = append(asked, r)
		}
	}
	lists, err := e.list(ctx, asked)
	if err != nil {
		return view{}, err
	}
	for _, r := range asked {
		if l := lists[r]; r.Top > 0 && l.why == "" {
			l.counters = union(l.counters, kept(r))
		}
	}
	found, err := e.ask(ctx, asked, lists)
	if err != nil {
		return view{}, err
	}
	out.at = found.at
	for _, r := range rules {
		if err := out.refused[r]; err != nil {
			out.seen = append(out.seen, allUnknown([]*Rule{r}, kept, found.at, cannotBeAsked(err))...)
		} else {
			out.seen = append(out.seen, found.sightings(r, lists[r], kept)...)
		}
	}
	return out, nil
}

// check returns an error if no tier of the layout can answer the rule.
func (r *Rule) check(layout window.Layout) error {
	now := time.Now().UnixMilli() // any time will do
	for _, p := range r.parts("") {
		asked, err := p.question().Span.At(now)
		if err == nil {
			_, err = layout.Plan("", asked, now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func cannotBeAsked(err error) string { return fmt.Sprintf("it cannot be asked: %v", err) }

// allUnknown returns an unknown result for each rule and each of its active keys.
func allUnknown(rules []*Rule, kept func(*Rule) []string, at int64, why string) (out []Sighting) {
	for _, r := range rules {
		out = append(out, Sighting{Rule: r, Key: r.key(), Reason: why, At: at})
		if !r.many() || kept == nil {
			continue
		}
		for _, key := range kept(r) {
			out = append(out, Sighting{Rule: r, Key: key, Reason: why, At: at})
		}
	}
	return out
}

// list lists the counters of each rule with prefix or top. Rules with the same prefix, or the same top and
// window, share a query.
func (e *eye) list(ctx context.Context, rules []*Rule) (map[*Rule]*listing, error) {
	type wanted struct {
		prefix string
		top    int
		length time.Duration
	}
	found := make(map[wanted]*listing)
	want := func(r *Rule) wanted {
		if r.Top > 0 {
			return wanted{top: r.Top, length: r.Window}
		}
		return wanted{prefix: *r.Prefix}
	}
	for _, r := range rules {
		if r.Key == "" {
			found[want(r)] = new(listing)
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(lookers)
	for w, into := range found {
		group.Go(func() error {
			var l listing
			var err error
			if w.top > 0 {
				l, err = e.listTop(gctx, w.length, w.top)
			} else {
				l, err = e.listNames(gctx, w.prefix)
			}
			if refused := refusal(err); refused != "" {
				l, err = listing{why: refused}, nil
			}
			*into = l
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	out := make(map[*Rule]*listing)
	for _, r := range rules {
		if r.Key == "" {
			l := *found[want(r)]
			out[r] = &l
		}
	}
	return out, nil
}

// refusal returns why a query can never be answered: its size, or a foreign key. It is empty for other
// errors, because Redis may answer the next time.
func refusal(err error) string {
	var much *window.TooMuchError
	if errors.As(err, &much) || window.IsForeign(err) {
		return cannotBeAsked(err)
	}
	return ""
}

func (e *eye) listNames(ctx context.Context, prefix string) (listing, error) {
	out := listing{asOf: math.MaxInt64}
	question := window.NamesQuestion{Prefix: prefix}
	for {
		question.Limit = e.maxSum + 1 - len(out.counters)
		page, err := e.reader.Names(ctx, question)
		if err != nil {
			return out, err
		}
		out.counters = append(out.counters, page.Counters...)
		// Hits that the clock of NATS dated after Now are not listed yet.
		out.asOf = min(out.asOf, page.AsOf, page.Now)
		out.completeSince, out.countingSince = max(out.completeSince, page.CompleteSince), page.CountingSince
		if len(out.counters) > e.maxSum {
			return listing{why: fmt.Sprintf("more than %d counters begin like this (WATCH_MAX_SUM)", e.maxSum)}, nil
		}
		if question.After = page.Next; page.Next == "" {
			return out, nil
		}
	}
}

func (e *eye) listTop(ctx context.Context, length time.Duration, limit int) (listing, error) {
	found, err := e.reader.Top(ctx, window.Last(length), limit)
	if err != nil {
		return listing{}, err
	}
	out := listing{asOf: found.AsOf, countingSince: found.CountingSince}
	if !found.Complete {
		out.completeSince = math.MaxInt64
	}
	for _, c := range found.Counters {
		out.counters = append(out.counters, c.Counter)
	}
	return out, nil
}

type findings struct {
	at, asOf int64
	answers  map[part]window.Answer
	refused  map[part]string // why
}

// ask queries all counters of all rules in few round trips. It leaves out refused questions. Each refusal costs
// a round trip, so after one the trips become smaller.
func (e *eye) ask(ctx context.Context, rules []*Rule, lists map[*Rule]*listing) (*findings, error) {
	f := &findings{asOf: math.MaxInt64, answers: make(map[part]window.Answer), refused: make(map[part]string)}
	wanted := make(map[part]bool)
	var order []part
	for _, r := range rules {
		for _, counter := range lists[r].of(r) {
			for _, p := range r.parts(counter) {
				if !wanted[p] {
					wanted[p] = true
					order = append(order, p)
				}
			}
		}
	}
	for size := maxQuestions; len(order) > 0; {
		chunk := order[:min(size, len(order))]
		questions := make([]window.Question, len(chunk))
		for i, p := range chunk {
			questions[i] = p.question()
		}
		found, err := e.reader.Answer(ctx, questions)
		var bad *window.QuestionError
		switch {
		case err == nil:
			for i, p := range chunk {
				f.answers[p] = found.Answers[i]
			}
			f.at, f.asOf = max(f.at, found.Now), min(f.asOf, found.AsOf)
			order, size = order[len(chunk):], min(2*size, maxQuestions)
		case window.IsForeign(err) && errors.As(err, &bad):
			f.refused[chunk[bad.Index]] = refusal(err)
			order, size = slices.Delete(order, bad.Index, bad.Index+1), max(1, size/2)
		default:
			return nil, err
		}
	}
	if f.at == 0 { // nothing was answered: the rules may have no counters
		f.at = time.Now().UnixMilli()
	}
	return f, nil
}

// of returns the counters to query for a rule. If there are none, it returns an unused name, so that Redis's
// clock is read.
func (l *listing) of(r *Rule) []string {
	switch {
	case l == nil:
		return []string{r.Key}
	case l.why != "":
		return nil
	case len(l.counters) == 0 && r.Prefix != nil:
		return []string{*r.Prefix}
	}
	return l.counters
}

func (f *findings) figures(p part) (out Figures, why string) {
	if why = f.refused[p]; why != "" {
		return out, why
	}
	a := f.answers[p]
	return Figures{
		Total: a.Total, Lower: a.Lower, Upper: a.Upper, Fresh: !a.Range.Outruns(f.asOf), Complete: a.Complete,
		Young: !a.Complete && (a.CountingSince == 0 || a.Range.From < a.CountingSince),
	}, ""
}

func (f *findings) sightings(r *Rule, l *listing, kept func(*Rule) []string) []Sighting {
	if l == nil {
		return []Sighting{f.sight(r, r.Key, []string{r.Key}, nil)}
	}
	if l.why != "" {
		return allUnknown([]*Rule{r}, kept, f.at, l.why)
	}
	if !r.many() {
		return []Sighting{f.sight(r, *r.Prefix, l.counters, l)}
	}
	groups := make(map[string][]string)
	for _, counter := range l.counters {
		name := counter
		if r.Group > 0 {
			name = window.GroupOf(counter, r.Group)
		}
		groups[name] = append(groups[name], counter)
	}
	for _, key := range kept(r) {
		groups[key] = append([]string{}, groups[key]...) // a key that is no longer listed has no hits
	}
	about := l
	if r.Top > 0 {
		about = nil // each of the largest counters has its own answer
	}
	out := make([]Sighting, 0, len(groups)+1)
	for _, key := range slices.SortedFunc(maps.Keys(groups), strings.Compare) {
		out = append(out, f.sight(r, key, groups[key], about))
	}
	// The largest come first, because they get a state if not all keys can have one.
	slices.SortStableFunc(out, func(a, b Sighting) int {
		most, _, _ := a.numbers()
		other, _, _ := b.numbers()
		return cmp.Compare(other, most)
	})
	return append([]Sighting{f.whole(r, l)}, out...)
}

// whole returns the result of a rule with many keys itself: unknown if not all keys are known.
func (f *findings) whole(r *Rule, l *listing) Sighting {
	out := Sighting{Rule: r, At: f.at, AsOf: min(f.asOf, l.asOf), Verdict: HoldsNot}
	if figures := l.cover(window.Range{From: f.at - r.Window.Milliseconds(), To: f.at}, out.AsOf); !figures.known() {
		out.Verdict, out.Reason = NobodyKnows, figures.unknownReason()
	}
	return out
}

// cover returns figures without hits that are as fresh and complete as the list.
func (l *listing) cover(span window.Range, asOf int64) Figures {
	out := Figures{Fresh: !span.Outruns(asOf), Complete: span.From >= l.completeSince}
	out.Young = !out.Complete && (l.countingSince == 0 || span.From < l.countingSince)
	return out
}

// sight adds up a key's counters and evaluates the condition. If l is not nil, the figures are only as complete
// as that list, because an unlisted counter may belong to the key.
func (f *findings) sight(r *Rule, key string, counters []string, l *listing) Sighting {
	out := Sighting{Rule: r, Key: key, At: f.at, AsOf: f.asOf}
	sums := make([]Figures, len(r.parts("")))
	for i := range sums {
		sums[i] = Figures{Fresh: true, Complete: true}
		if l == nil {
			continue
		}
		end := f.at - int64(i)*r.Window.Milliseconds()
		out.AsOf = min(f.asOf, l.asOf)
		sums[i] = l.cover(window.Range{From: end - r.Window.Milliseconds(), To: end}, out.AsOf)
	}
	for _, counter := range counters {
		for i, p := range r.parts(counter) {
			one, why := f.figures(p)
			if why != "" {
				out.Reason = why
				return out
			}
			sums[i].add(one)
		}
	}
	out.Figures = &sums[0]
	out.Verdict, out.Reason = r.Condition.judge(sums[0], sums[len(sums)-1])
	return out
}
