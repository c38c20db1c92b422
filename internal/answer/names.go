package answer

import (
	"context"
	"math"

	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

type listing struct {
	counters      []string
	asOf          int64 // every counter with a hit stored before is among them, and in the end the hit in the sum
	completeSince int64
	countingSince int64
}

func (d *Service) listNames(ctx context.Context, q window.NamesQuestion, most int) (listing, error) {
	out := listing{asOf: math.MaxInt64}
	for {
		q.Limit = most + 1 - len(out.counters)
		page, err := d.Reader.Names(ctx, q)
		if err != nil {
			return listing{}, err
		}
		out.counters = append(out.counters, page.Counters...)
		// What the clock of NATS has dated after Now is not listed yet.
		out.asOf = min(out.asOf, page.AsOf, page.Now)
		out.completeSince = max(out.completeSince, page.CompleteSince)
		out.countingSince = page.CountingSince
		if page.Next == "" || len(out.counters) > most {
			return out, nil
		}
		q.After = page.Next
	}
}

// listCounters lists the counters of a sum, more than MaxSum only if there are more. Some may have no hits.
func (d *Service) listCounters(ctx context.Context, in *Input) (listing, error) {
	return d.listNames(ctx, window.NamesQuestion{Prefix: in.prefix, Listed: true}, d.MaxSum)
}

// upTo returns the counters, or none if they are more than most: the question is then asked only for its
// other errors.
func (n *listing) upTo(most int) []string {
	if len(n.counters) > most {
		return nil
	}
	return n.counters
}

// applyTo gives a sum the as_of and completeness of all counters, because one not listed yet may belong to
// it.
func (n *listing) applyTo(f window.Series) window.Series {
	f.AsOf, f.CompleteSince, f.CountingSince = min(f.AsOf, n.asOf), max(f.CompleteSince, n.completeSince), n.countingSince
	f.Complete = f.Complete && f.Range.From >= n.completeSince
	return f
}

func (n *listing) tooMany(in *Input, most int) *web.Problem {
	begin := "begin with " + web.Excerpt(in.prefix)
	if in.prefix == "" {
		begin = "are known"
	}
	return web.BadInput("prefix", "at least %d counters %s: at most %d are added up (QUERY_MAX_SUM): use a longer prefix, or a rule that counts the group as a counter of its own",
		len(n.counters), begin, most).Problem(in.Part)
}
