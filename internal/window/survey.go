package window

import (
	"context"
	"errors"
	"time"
)

// survey is what every question about all counters reads first.
type survey struct {
	snapshot // of the cursors of all shards, and of no hash
}

// complete reports whether no hit of a plan is known to be missing, whatever shard its counter is on.
func (s survey) complete(p Plan) bool {
	for shard := range s.shards {
		p.shard = shard
		if !s.snapshot.complete(&p) {
			return false
		}
	}
	return true
}

// countingSince returns when counting began on all shards; 0 if unknown for one of them.
func (s survey) countingSince() (out int64) {
	for _, shard := range s.shards {
		if shard.began == 0 {
			return 0
		}
		out = max(out, shard.began)
	}
	return out
}

// completeSince returns the moment from which nothing is known to be missing on any shard; see Names.
func (s survey) completeSince() (out int64) {
	for _, shard := range s.shards {
		out = max(out, shard.whole())
	}
	return out
}

// surveyed reads all shards' cursors with the current layout and streams, and calls next, whose reads can
// only be newer than asOf; again if next finds too much changed.
func surveyed[T any](ctx context.Context, r *Reader, next func(survey) (T, error)) (out T, err error) {
	for range maxTries {
		found, asked := r.ask(ctx, func(l Layout, _ int64) ([]Plan, error) {
			shards := make([]Plan, l.Shards)
			for i := range shards {
				shards[i].shard = i
			}
			return shards, nil
		})
		if asked != nil { // also errStale: ask has tried often enough
			return out, asked
		}
		if out, err = next(survey{found}); !errors.Is(err, errStale) {
			break
		}
	}
	return out, err
}

// holds reports whether keys that live for grace after the survey's moment exist, as far as clocks are known.
func (r *Reader) holds(base survey, grace time.Duration) bool {
	now, _ := r.clocks.now(r.local())
	return now.milli-base.at.milli <= grace.Milliseconds()
}

// answerAfter answers like Answer, based on a survey.
func (r *Reader) answerAfter(ctx context.Context, base survey, questions []Question) (Answers, error) {
	found, err := r.fetch(ctx, base.dir, base.at, sumOf(questions))
	if err != nil {
		return Answers{}, err
	}
	return found.totals(), nil
}

// About returns the layout, and when counting began on all shards (Unix milliseconds; 0 if unknown). Its
// errors are those of Answer.
func (r *Reader) About(ctx context.Context) (layout Layout, countingSince int64, err error) {
	layout, err = surveyed(ctx, r, func(found survey) (Layout, error) {
		countingSince = found.countingSince()
		return found.dir.layout, nil
	})
	return layout, countingSince, err
}
