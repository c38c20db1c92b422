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
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"tallyroll/internal/limit"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

// Reader is the part of read.Reader that rules use.
type Reader interface {
	Look(ctx context.Context) (window.Layout, error)
	Answer(ctx context.Context, questions []window.Question) (window.Answers, error)
	Top(ctx context.Context, asked window.Span, limit int, prefixes ...string) (read.Top, error)
	Bounds(ctx context.Context, asked window.Span) (read.Top, error)
	Names(ctx context.Context, q read.NamesQuestion) (read.Names, error)
}

// Limiter is the part of limit.Limiter that rules use.
type Limiter interface {
	Look(ctx context.Context, takes []limit.Take) (limit.Answer, error)
}

// querier queries the counters and limits of rules and evaluates them. One goroutine uses it.
type querier struct {
	reader  Reader
	limiter Limiter
	maxSum  int // counters with a prefix that one rule reads
}

const (
	// listConcurrency bounds the concurrent queries for names and largest counters.
	listConcurrency = 8
	// maxQuestions bounds the counters and windows of one round trip: their replies take some megabytes.
	maxQuestions = 5000
)

type snapshot struct {
	at      int64 // by Redis's clock, Unix milliseconds
	results []Result
	refused map[*Rule]error // rules with windows that no tier holds
}

// questions asks about a counter's window and, of ByPercent, about the window before that.
func (r *Rule) questions(counter string) []window.Question {
	isPart := r.Prefix != nil && !r.hasCounters()
	out := []window.Question{{Counter: counter, Span: r.Window, Part: isPart}}
	if r.Condition.Kind == ByPercent {
		out = append(out, window.Question{Counter: counter, Part: isPart,
			Span: window.Span{To: window.Now, Calendar: previousWindow(r.Window.Length)}})
	}
	return out
}

// counterList holds the counters of a rule with prefix or top.
type counterList struct {
	counters      []string
	overflows     []string // overflow counters that may have hits of counters with the prefix
	asOf          int64
	completeSince int64
	countingSince int64
	refusal       string // why the rule cannot be queried; empty: it can
	incomplete    string // why more counters may be above the threshold; empty: none is
}

// query evaluates all rules. activeKeys returns the keys of a rule that are not idle. An error is Redis's.
func (q *querier) query(ctx context.Context, rules []*Rule, activeKeys func(*Rule) []string) (snapshot, error) {
	out, err := q.queryRules(ctx, rules, activeKeys)
	if errors.Is(err, schema.ErrNoLayout) { // no worker has ever counted here, so Redis's clock was not read
		at := time.Now().UnixMilli()
		return snapshot{at: at, results: unknownResults(rules, nil, at, reasonNoLayout)}, nil
	}
	return out, err
}

func (q *querier) queryRules(ctx context.Context, rules []*Rule, activeKeys func(*Rule) []string) (snapshot, error) {
	layout, err := q.reader.Look(ctx)
	if err != nil {
		return snapshot{}, err
	}
	out := snapshot{refused: make(map[*Rule]error)}
	var answerable []*Rule
	for _, r := range rules {
		if err := r.checkLayout(layout); err != nil {
			out.refused[r] = err
		} else {
			answerable = append(answerable, r)
		}
	}
	lists, err := q.listCounters(ctx, answerable)
	if err != nil {
		return snapshot{}, err
	}
	for _, r := range answerable {
		if l := lists[r]; r.hasCounters() && l.refusal == "" {
			active := slices.DeleteFunc(slices.Clone(activeKeys(r)), func(key string) bool {
				return r.Each && !strings.HasPrefix(key, *r.Prefix) // of another prefix, before the file changed
			})
			l.counters = slices.Compact(slices.Sorted(slices.Values(slices.Concat(l.counters, active))))
		}
	}
	answers, err := q.fetchAnswers(ctx, answerable, lists)
	if err == nil {
		answers.uses, err = q.askLimits(ctx, answerable, lists)
	}
	if err != nil {
		return snapshot{}, err
	}
	out.at = answers.at
	for _, r := range rules {
		if err := out.refused[r]; err != nil {
			out.results = append(out.results, unknownResults([]*Rule{r}, activeKeys, answers.at, formatRefusal(err))...)
		} else {
			out.results = append(out.results, answers.evaluateRule(r, lists[r], activeKeys)...)
		}
	}
	return out, nil
}

// checkLayout returns an error if no tier of the layout can answer the rule.
func (r *Rule) checkLayout(layout window.Layout) error {
	now := time.Now().UnixMilli() // any time will do
	for _, q := range r.questions("") {
		span, err := q.Span.At(now)
		if err == nil {
			_, err = layout.Plan("", span, now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func formatRefusal(err error) string { return fmt.Sprintf("it cannot be asked: %v", err) }

// unknownResults returns an unknown result for each rule and each of its active keys.
func unknownResults(rules []*Rule, activeKeys func(*Rule) []string, at int64, reason string) (out []Result) {
	for _, r := range rules {
		out = append(out, Result{Rule: r, Key: r.key(), Reason: reason, At: at})
		if !r.hasManyKeys() || activeKeys == nil {
			continue
		}
		for _, key := range activeKeys(r) {
			out = append(out, Result{Rule: r, Key: key, Reason: reason, At: at})
		}
	}
	return out
}

func (r *Rule) needsList() bool { return r.Prefix != nil || r.Top > 0 }

// listCounters lists the counters of each rule with prefix or top. Rules with the same list share a query.
func (q *querier) listCounters(ctx context.Context, rules []*Rule) (map[*Rule]*counterList, error) {
	type listQuery struct {
		prefix string
		top    int
		each   bool
		span   window.Span
		above  int64
	}
	lists := make(map[listQuery]*counterList)
	queryFor := func(r *Rule) listQuery {
		switch {
		case r.Top > 0:
			return listQuery{top: r.Top, span: r.Window}
		case r.Limit != nil:
			return listQuery{prefix: *r.Prefix, each: true, span: r.Window}
		case r.Each:
			return listQuery{prefix: *r.Prefix, each: true, span: r.Window, above: r.Condition.Threshold}
		}
		return listQuery{prefix: *r.Prefix}
	}
	group, gctx := errgroup.WithContext(ctx)
	bounds := make(map[window.Span]func() (read.Top, error)) // read once per window, because they are large
	for _, r := range rules {
		if r.needsList() {
			lists[queryFor(r)] = new(counterList)
			bounds[r.Window] = sync.OnceValues(func() (read.Top, error) { return q.reader.Bounds(gctx, r.Window) })
		}
	}
	group.SetLimit(listConcurrency)
	for w, list := range lists {
		group.Go(func() error {
			var l counterList
			var err error
			switch {
			case w.top > 0:
				l, err = q.fetchTop(gctx, w.span, w.top)
			case w.each:
				l, err = q.fetchAbove(gctx, bounds[w.span], w.prefix, w.above)
			default:
				l, err = q.fetchNames(gctx, w.prefix)
			}
			if reason := refusalReason(err); reason != "" {
				l, err = counterList{refusal: reason}, nil
			}
			*list = l
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	out := make(map[*Rule]*counterList)
	for _, r := range rules {
		if r.needsList() {
			l := *lists[queryFor(r)]
			out[r] = &l
		}
	}
	return out, nil
}

// refusalReason returns why a query cannot be answered now: its size, its window, or a foreign key. It is
// empty for other errors, because Redis may answer the next time.
func refusalReason(err error) string {
	var much *window.TooMuchError
	var bad *window.QuestionError
	if errors.As(err, &much) || errors.As(err, &bad) || window.IsForeign(err) {
		return formatRefusal(err)
	}
	return ""
}

func (q *querier) fetchNames(ctx context.Context, prefix string) (counterList, error) {
	names, err := read.AllNames(ctx, q.reader.Names, read.NamesQuestion{Prefix: prefix}, q.maxSum)
	if err == nil && len(names.Counters) > q.maxSum {
		return counterList{refusal: fmt.Sprintf("more than %d counters begin like this (WATCH_MAX_SUM)", q.maxSum)}, nil
	}
	return counterList{counters: names.Counters, overflows: names.Overflows, asOf: names.AsOf,
		completeSince: names.CompleteSince, countingSince: names.CountingSince}, err
}

func (q *querier) fetchTop(ctx context.Context, span window.Span, limit int) (counterList, error) {
	top, err := q.reader.Top(ctx, span, limit)
	if err != nil {
		return counterList{}, err
	}
	out := newCounterList(top)
	for _, c := range top.Counters {
		out.counters = append(out.counters, c.Counter)
	}
	return out, nil
}

// newCounterList returns a list without counters that is as fresh and complete as top.
func newCounterList(top read.Top) counterList {
	out := counterList{asOf: top.AsOf, countingSince: top.CountingSince}
	if !top.Complete {
		out.completeSince = math.MaxInt64
	}
	return out
}

// fetchAbove lists the counters with a prefix that may have more than above hits. If bounds leaves out
// counters that may, it lists all counters with the prefix, unless these are too many.
func (q *querier) fetchAbove(ctx context.Context, bounds func() (read.Top, error), prefix string,
	above int64) (counterList, error) {
	top, err := bounds()
	if err != nil {
		return counterList{}, err
	}
	out := newCounterList(top)
	for _, counter := range top.Overflows {
		if strings.HasPrefix(counter, prefix) || window.OverflowsTo(prefix, counter) {
			out.overflows = append(out.overflows, counter)
		}
	}
	for _, c := range top.Counters {
		if c.Upper <= above || !strings.HasPrefix(c.Counter, prefix) {
			continue
		}
		if len(out.counters) == q.maxSum {
			out.incomplete = fmt.Sprintf("more than %d counters may be above the threshold (WATCH_MAX_SUM)", q.maxSum)
			return out, nil
		}
		out.counters = append(out.counters, c.Counter)
	}
	if top.Floor <= above {
		return out, nil
	}
	all, err := q.fetchNames(ctx, prefix)
	if err != nil || all.refusal == "" {
		return all, err
	}
	out.incomplete = fmt.Sprintf("counters in no top list may have up to %d hits, and %s", top.Floor, all.refusal)
	return out, nil
}

type answerSet struct {
	at, asOf int64
	answers  map[window.Question]window.Answer
	refused  map[window.Question]string // why
	uses     map[use]answeredUse
}

// use is what a counter's key has used of the rule's limit.
type use struct {
	rule    *Rule
	counter string
}

type answeredUse struct {
	Figures
	refusal string
}

// askLimits asks the limits of rules what the keys of the listed counters have used of them.
func (q *querier) askLimits(ctx context.Context, rules []*Rule, lists map[*Rule]*counterList) (map[use]answeredUse,
	error) {
	out := make(map[use]answeredUse)
	var mu sync.Mutex // guards out
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(listConcurrency)
	for _, r := range rules {
		if r.Limit == nil {
			continue
		}
		asked, callerOf := r.Limit.Limit, r.Limit.Callers()
		asked.Fail = limit.FailClosed // no fail mode knows the hits
		for counters := range slices.Chunk(lists[r].counters, limit.MaxTogether) {
			group.Go(func() error {
				takes := make([]limit.Take, len(counters))
				for i, counter := range counters {
					key := strings.TrimPrefix(counter, *r.Prefix)
					takes[i] = limit.Take{Limit: &asked, Caller: callerOf(key), Key: key}
				}
				answer, err := q.limiter.Look(gctx, takes)
				if _, down := errors.AsType[*limit.UnavailableError](err); down || gctx.Err() != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				for i, counter := range counters {
					if err != nil {
						out[use{r, counter}] = answeredUse{refusal: formatRefusal(err)}
						continue
					}
					d := &answer.Decisions[i]
					out[use{r, counter}] = answeredUse{Figures: Figures{Total: max(asked.Max-d.Remaining, d.Lower),
						Lower: d.Lower, Upper: d.Upper, Fresh: true, Complete: true}}
				}
				return nil
			})
		}
	}
	return out, group.Wait()
}

// fetchAnswers queries all counters of all rules in few round trips. It leaves out refused questions. Each
// refusal costs a round trip, so after one the trips become smaller.
func (q *querier) fetchAnswers(ctx context.Context, rules []*Rule, lists map[*Rule]*counterList) (*answerSet, error) {
	out := &answerSet{asOf: math.MaxInt64, answers: make(map[window.Question]window.Answer),
		refused: make(map[window.Question]string)}
	queued := make(map[window.Question]bool)
	var order []window.Question
	for _, r := range rules {
		for _, counter := range lists[r].countersToQuery(r) {
			for _, question := range r.questions(counter) {
				if !queued[question] {
					queued[question] = true
					order = append(order, question)
				}
			}
		}
	}
	for size := maxQuestions; len(order) > 0; {
		chunk := order[:min(size, len(order))]
		reply, err := q.reader.Answer(ctx, chunk)
		var bad *window.QuestionError
		switch {
		case err == nil:
			for i, question := range chunk {
				out.answers[question] = reply.Answers[i]
			}
			out.at, out.asOf = max(out.at, reply.Now), min(out.asOf, reply.AsOf)
			order, size = order[len(chunk):], min(2*size, maxQuestions)
		case errors.As(err, &bad):
			out.refused[chunk[bad.Index]] = refusalReason(err)
			order, size = slices.Delete(order, bad.Index, bad.Index+1), max(1, size/2)
		default:
			return nil, err
		}
	}
	if out.at == 0 { // nothing was answered: the rules may have no counters
		out.at = time.Now().UnixMilli()
	}
	return out, nil
}

// countersToQuery returns the counters to query, or window.AllHits, which is an empty key: of an empty list
// an unused name, which yields Redis's clock.
func (l *counterList) countersToQuery(r *Rule) []string {
	switch {
	case l == nil:
		return []string{r.Key}
	case l.refusal != "":
		return nil
	case r.Limit != nil || len(l.counters) == 0 && r.Prefix != nil:
		return append([]string{*r.Prefix}, l.overflows...)
	case r.hasCounters(): // each has its own answer
		return l.counters
	}
	return slices.Concat(l.counters, l.overflows)
}

// overflowsTo returns the overflow counters that may have hits of a key, and are not among its counters.
func (l *counterList) overflowsTo(key string) (out []string) {
	if l == nil {
		return nil
	}
	for _, counter := range l.overflows {
		if window.OverflowsTo(key, counter) {
			out = append(out, counter)
		}
	}
	return out
}

func (s *answerSet) readFigures(r *Rule, q window.Question) (out Figures, refusal string) {
	if r.Limit != nil {
		used := s.uses[use{r, q.Counter}]
		return used.Figures, used.refusal
	}
	if refusal = s.refused[q]; refusal != "" {
		return out, refusal
	}
	a := s.answers[q]
	return Figures{
		Total: a.Total, Lower: a.Lower, Upper: a.Upper, Fresh: !a.Range.Outruns(s.asOf), Complete: a.Complete,
		Young: !a.Complete && (a.CountingSince == 0 || a.Range.From < a.CountingSince),
	}, ""
}

func (s *answerSet) evaluateRule(r *Rule, l *counterList, activeKeys func(*Rule) []string) []Result {
	if l == nil {
		return []Result{s.evaluateKey(r, r.Key, []string{r.Key}, nil)}
	}
	if l.refusal != "" {
		return unknownResults([]*Rule{r}, activeKeys, s.at, l.refusal)
	}
	if !r.hasManyKeys() {
		return []Result{s.evaluateKey(r, *r.Prefix, l.counters, l)}
	}
	groups := make(map[string][]string)
	for _, counter := range l.counters {
		name := counter
		if r.Group > 0 {
			name = window.GroupOf(counter, r.Group)
		}
		groups[name] = append(groups[name], counter)
	}
	list := l
	if r.hasCounters() {
		list = nil // each has its own answer
	} else {
		for _, key := range activeKeys(r) {
			groups[key] = append([]string{}, groups[key]...) // a group that is no longer listed has no hits
		}
	}
	out := make([]Result, 0, len(groups)+1)
	for _, key := range slices.SortedFunc(maps.Keys(groups), strings.Compare) {
		out = append(out, s.evaluateKey(r, key, groups[key], list))
	}
	// The largest come first, because they get a state if not all keys can have one.
	slices.SortStableFunc(out, func(a, b Result) int {
		most, _, _ := a.bounds()
		other, _, _ := b.bounds()
		return cmp.Compare(other, most)
	})
	return append([]Result{s.evaluateAllKeys(r, l)}, out...)
}

// evaluateAllKeys returns the result of a rule with many keys itself: unknown if not all keys are known.
func (s *answerSet) evaluateAllKeys(r *Rule, l *counterList) Result {
	out := Result{Rule: r, At: s.at, AsOf: min(s.asOf, l.asOf), Verdict: DoesNotHold}
	span, _ := r.Window.At(s.at) // one up to now is never empty
	out.Reason = cmp.Or(l.cover(span, out.AsOf).unknownReason(), l.incomplete, s.hiddenKeys(r, l))
	if out.Reason != "" {
		out.Verdict = Undecided
	}
	return out
}

// hiddenKeys returns why a limit may have keys above the threshold that no counter names; empty: it has none.
func (s *answerSet) hiddenKeys(r *Rule, l *counterList) string {
	if r.Limit == nil {
		return ""
	}
	for _, counter := range l.overflows {
		if s.answers[r.questions(counter)[0]].Upper > 0 {
			return fmt.Sprintf("counters of some keys have no room: their hits are on %s (INGEST_MAX_NAMES)", counter)
		}
	}
	return ""
}

// cover returns figures without hits that are as fresh and complete as the list.
func (l *counterList) cover(span window.Range, asOf int64) Figures {
	out := Figures{Fresh: !span.Outruns(asOf), Complete: span.From >= l.completeSince}
	out.Young = !out.Complete && (l.countingSince == 0 || span.From < l.countingSince)
	return out
}

// evaluateKey adds up a key's counters and evaluates the condition. If l is not nil, the figures are only as
// complete as that list, because an unlisted counter may belong to the key.
func (s *answerSet) evaluateKey(r *Rule, key string, counters []string, l *counterList) Result {
	out := Result{Rule: r, Key: key, At: s.at, AsOf: s.asOf}
	if r.Limit != nil {
		out.AsOf = s.at
	}
	sums := make([]Figures, len(r.questions("")))
	for i, q := range r.questions("") {
		sums[i] = Figures{Fresh: true, Complete: true}
		if l == nil {
			continue
		}
		span, _ := q.Span.At(s.at)
		out.AsOf = min(s.asOf, l.asOf)
		sums[i] = l.cover(span, out.AsOf)
	}
	for n, counter := range slices.Concat(counters, l.overflowsTo(key)) {
		for i, q := range r.questions(counter) {
			figures, refusal := s.readFigures(r, q)
			if refusal != "" {
				out.Reason = refusal
				return out
			}
			if n >= len(counters) {
				figures.Total, figures.Lower = 0, 0
			}
			sums[i].add(figures)
		}
	}
	out.Figures = &sums[0]
	out.Verdict, out.Reason = r.Condition.evaluate(sums[0], sums[len(sums)-1])
	return out
}
