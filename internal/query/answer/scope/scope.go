// Package scope answers questions about counters within what the caller's token is about. Its questions are
// those of package read, so programs that answer no HTTP of package answer can use it, too.
package scope

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"tallyroll/internal/web/access"
	"tallyroll/internal/window"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
)

// Counters are the questions about the counters of a namespace. *read.Reader implements it.
type Counters interface {
	Namespace
	Answer(ctx context.Context, questions []window.Question) (window.Answers, error)
	Series(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error)
	Uniques(ctx context.Context, questions []window.Question) (window.Answers, error)
	UniqueSeries(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error)
	SeriesSums(ctx context.Context, q window.SeriesQuestion, counters []string, group func(counter string) string,
		lines int) (read.SeriesSums, error)
	Top(ctx context.Context, asked window.Span, limit int, prefixes ...string) (read.Top, error)
	Names(ctx context.Context, q read.NamesQuestion) (read.Names, error)
	BeginExport(ctx context.Context, q read.ExportQuestion) (read.Export, error)
	ExportPage(ctx context.Context, e read.Export, at read.ExportPlace) (read.ExportPage, error)
	Erase(ctx context.Context, counters []string) (erase.Erased, error)
	EraseListed(ctx context.Context, prefix, after string) (erase.Erased, error)
	Fall(ctx context.Context, counter string, length time.Duration, most int64) (window.Answers, time.Duration, error)
}

// Namespace are the questions about a namespace as a whole, whatever prefixes a token has.
type Namespace interface {
	About(ctx context.Context) (read.About, error)
	Look(ctx context.Context) (window.Layout, error)
	Progress(ctx context.Context) (read.Reach, error)
	ClockDifference() (ahead time.Duration, known bool)
}

// Authorized asks Counters for the bearer of the context's token. A question that names what the
// token is not about gets a *web.Problem and does not reach Counters. A list without a prefix has the token's
// counters. Authorized implements Counters but embeds only a Namespace, so it does not compile
// without a method per question about counters.
type Authorized struct {
	Namespace
	counters Counters
}

func Authorize(c Counters) Authorized { return Authorized{c, c} }

var _ Counters = Authorized{}

// ErrChecked is the error of each question in a context of Checking whose caller may ask it.
var ErrChecked = errors.New("the caller may ask, and was only checked")

type checkingKey struct{}

// Checking returns a context in which questions of Authorized only check the caller.
func Checking(ctx context.Context) context.Context {
	return context.WithValue(ctx, checkingKey{}, true)
}

// checkedErr returns the error of a check, or ErrChecked if there is none and the context only checks.
func checkedErr(ctx context.Context, err error) error {
	if err == nil && ctx.Value(checkingKey{}) != nil {
		return ErrChecked
	}
	return err
}

// checked asks questions that name counters if the token is about each of them.
func checked[Q, A any](ctx context.Context, questions []Q, counter func(Q) string,
	ask func(context.Context, []Q) (A, error)) (out A, err error) {
	for _, q := range questions {
		if part, ok := any(q).(window.Question); ok && part.Part && mayOverflowTo(ctx, part.Counter) {
			continue // the bearer learns a bound
		}
		check := access.From(ctx).CheckKey
		if counter(q) == window.AllHits {
			check = access.From(ctx).CheckPrefix // the hits of all names
		}
		if err := check(counter(q)); err != nil {
			return out, err
		}
	}
	if err := checkedErr(ctx, nil); err != nil {
		return out, err
	}
	return ask(ctx, questions)
}

// mayOverflowTo reports whether a counter is an overflow counter that may have hits of the token's counters.
func mayOverflowTo(ctx context.Context, counter string) bool {
	return slices.ContainsFunc(access.From(ctx).Prefixes(), func(prefix string) bool {
		return window.OverflowsTo(prefix, counter)
	})
}

func counterOf(q window.Question) string { return q.Counter }

func lineOf(q window.SeriesQuestion) string { return q.Counter }

func itself(counter string) string { return counter }

func (r Authorized) Answer(ctx context.Context, questions []window.Question) (window.Answers, error) {
	return checked(ctx, questions, counterOf, r.counters.Answer)
}

func (r Authorized) Series(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error) {
	return checked(ctx, questions, lineOf, r.counters.Series)
}

func (r Authorized) Uniques(ctx context.Context, questions []window.Question) (window.Answers, error) {
	return checked(ctx, questions, counterOf, r.counters.Uniques)
}

func (r Authorized) UniqueSeries(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error) {
	return checked(ctx, questions, lineOf, r.counters.UniqueSeries)
}

func (r Authorized) SeriesSums(ctx context.Context, q window.SeriesQuestion, counters []string,
	group func(counter string) string, lines int) (read.SeriesSums, error) {
	named := counters
	if q.Counter != "" { // the prefix of all of them
		named = append([]string{q.Counter}, counters...)
	}
	return checked(ctx, named, itself,
		func(ctx context.Context, _ []string) (read.SeriesSums, error) {
			return r.counters.SeriesSums(ctx, q, counters, group, lines)
		})
}

// Top without a prefix is about all counters, so it is refused to a token with prefixes.
func (r Authorized) Top(ctx context.Context, asked window.Span, limit int, prefixes ...string) (read.Top, error) {
	named := prefixes
	if len(named) == 0 {
		named = []string{""}
	}
	for _, prefix := range named {
		if err := access.From(ctx).CheckPrefix(prefix); err != nil {
			return read.Top{}, err
		}
	}
	if err := checkedErr(ctx, nil); err != nil {
		return read.Top{}, err
	}
	return r.counters.Top(ctx, asked, limit, prefixes...)
}

// Names lists one prefix of the token after the other, which is the order of the names.
func (r Authorized) Names(ctx context.Context, q read.NamesQuestion) (out read.Names, err error) {
	prefixes, err := within(ctx, q.Prefix)
	if err != nil {
		return out, err
	}
	out = read.NoNames()
	limit := q.Limit
	for i, prefix := range prefixes {
		last := i == len(prefixes)-1
		if !last && isPast(q.After, prefix) {
			continue
		}
		q.Prefix, q.Limit = prefix, limit-len(out.Counters)
		page, err := r.counters.Names(ctx, q)
		if err != nil {
			return page, err
		}
		out.Add(page)
		if page.Next != "" {
			break
		}
		if len(out.Counters) == limit && !last {
			out.Next = out.Counters[limit-1]
			break
		}
	}
	return out, nil
}

func (r Authorized) BeginExport(ctx context.Context, q read.ExportQuestion) (read.Export, error) {
	if _, err := within(ctx, q.Prefix); err != nil {
		return read.Export{}, err
	}
	return r.counters.BeginExport(ctx, q)
}

// ExportPage reads one prefix of the token after the other. The place may be forged.
func (r Authorized) ExportPage(ctx context.Context, e read.Export,
	at read.ExportPlace) (page read.ExportPage, err error) {
	prefixes, err := within(ctx, e.Prefix)
	if err != nil {
		return page, err
	}
	if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(at.Counter, p) }) {
		at.Inside = 0
	}
	for i, prefix := range prefixes {
		last := i == len(prefixes)-1
		if !last && isPast(at.Counter, prefix) {
			continue
		}
		e.Prefix = prefix
		page, err = r.counters.ExportPage(ctx, e, at)
		if err != nil || last || page.More || page.Next != at {
			page.More = page.More || !last
			break
		}
		at.Inside = 0 // there is nothing more of this prefix
	}
	return page, err
}

func (r Authorized) Erase(ctx context.Context, counters []string) (erase.Erased, error) {
	return checked(ctx, counters, itself, r.counters.Erase)
}

// EraseListed erases nothing without a prefix of the token.
func (r Authorized) EraseListed(ctx context.Context, prefix, after string) (erase.Erased, error) {
	if err := checkedErr(ctx, access.From(ctx).CheckPrefix(prefix)); err != nil {
		return erase.Erased{}, err
	}
	return r.counters.EraseListed(ctx, prefix, after)
}

func (r Authorized) Fall(ctx context.Context, counter string, length time.Duration,
	most int64) (window.Answers, time.Duration, error) {
	if err := checkedErr(ctx, access.From(ctx).CheckKey(counter)); err != nil {
		return window.Answers{}, 0, err
	}
	return r.counters.Fall(ctx, counter, length, most)
}

// within returns the prefixes of a list: the requested one, or else the token's.
func within(ctx context.Context, prefix string) ([]string, error) {
	t := access.From(ctx)
	if prefix == "" && t.HasPrefixes() {
		return t.Prefixes(), checkedErr(ctx, nil)
	}
	return []string{prefix}, checkedErr(ctx, t.CheckPrefix(prefix))
}

// isPast reports whether a place in the order of names is behind all names with a prefix.
func isPast(place, prefix string) bool { return place > prefix && !strings.HasPrefix(place, prefix) }
