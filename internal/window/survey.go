package window

import (
	"context"
	"errors"
	"time"
)

// Survey is what every question about all counters reads first.
type Survey struct {
	snapshot // of the cursors of all shards, and of no hash
}

// Layout returns the namespace's layout.
func (s Survey) Layout() Layout { return s.dir.Layout }

// Streams returns the listed streams, sorted by name.
func (s Survey) Streams() []string { return s.dir.Streams }

// Now returns the moment of the survey by Redis's clock, in Unix milliseconds.
func (s Survey) Now() int64 { return s.at.milli }

// LatestHit returns a moment up to which there may be hits (Unix milliseconds), at least Now.
func (s Survey) LatestHit() int64 {
	out := s.at.milli
	for _, shard := range s.shards {
		out = max(out, shard.latest)
	}
	return out
}

// complete reports whether no hit of a plan is known to be missing, whatever shard its counter is on.
func (s Survey) complete(p Plan) bool {
	for shard := range s.shards {
		p.Shard = shard
		if !s.snapshot.complete(&p) {
			return false
		}
	}
	return true
}

// countingSince returns when counting began on all shards; 0 if unknown for one of them.
func (s Survey) countingSince() (out int64) {
	for _, shard := range s.shards {
		if shard.began == 0 {
			return 0
		}
		out = max(out, shard.began)
	}
	return out
}

// completeSince returns the moment from which nothing is known to be missing on any shard; see Names.
func (s Survey) completeSince() (out int64) {
	for _, shard := range s.shards {
		out = max(out, shard.whole())
	}
	return out
}

// WithSurvey reads all shards' cursors with the current layout and streams, and calls next, whose reads can
// only be newer than asOf; again if next finds too much changed.
func WithSurvey[T any](ctx context.Context, r *Reader, next func(Survey) (T, error)) (out T, err error) {
	for range maxTries {
		found, asked := r.ask(ctx, func(l Layout, _ int64) ([]Plan, error) {
			shards := make([]Plan, l.Shards)
			for i := range shards {
				shards[i].Shard = i
			}
			return shards, nil
		})
		if asked != nil { // also ErrStale: ask has tried often enough
			return out, asked
		}
		if out, err = next(Survey{found}); !errors.Is(err, ErrStale) {
			break
		}
	}
	return out, err
}

// holds reports whether keys that live for grace after the survey's moment exist, as far as clocks are known.
func (r *Reader) holds(base Survey, grace time.Duration) bool {
	now, _ := r.clocks.now(r.local())
	return now.milli-base.at.milli <= grace.Milliseconds()
}

// answerAfter answers like Answer, based on a survey.
func (r *Reader) answerAfter(ctx context.Context, base Survey, questions []Question) (Answers, error) {
	found, err := r.fetch(ctx, base.dir, base.at, sumOf(questions))
	if err != nil {
		return Answers{}, err
	}
	return found.totals(), nil
}

// About returns the layout, and when counting began on all shards (Unix milliseconds; 0 if unknown). Its
// errors are those of Answer.
func (r *Reader) About(ctx context.Context) (layout Layout, countingSince int64, err error) {
	layout, err = WithSurvey(ctx, r, func(found Survey) (Layout, error) {
		countingSince = found.countingSince()
		return found.dir.Layout, nil
	})
	return layout, countingSince, err
}
