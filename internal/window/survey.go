package window

import (
	"context"
	"errors"
	"time"
)

// survey is what a question about all counters begins with.
type survey struct {
	reading          // of the cursors of all shards, and of no hash
	streams []string // ended ones too
}

// complete reports whether no hit of the range is known to be missing on any shard.
func (s survey) complete(asked Range) bool {
	for _, p := range s.plans {
		if p.Range = asked; !s.reading.complete(p) {
			return false
		}
	}
	return true
}

// countingSince is when counting began on all shards; 0 if that is not known of one.
func (s survey) countingSince() (out int64) {
	for _, on := range s.byShard {
		if on.began == 0 {
			return 0
		}
		out = max(out, on.began)
	}
	return out
}

// surveyed reads the cursors of every shard, and with them the layout and the
// list of streams as they are now, and lets next read on; all of it again if next
// finds that too much has changed meanwhile. What is read after the cursors can only be
// newer than asOf.
func (r *Reader) surveyed(ctx context.Context, next func(survey) error) error {
	for range maxTries {
		found, err := r.ask(ctx, func(l Layout, _ int64) ([]Plan, error) {
			shards := make([]Plan, l.Shards)
			for i := range shards {
				shards[i].Shard = i
			}
			return shards, nil
		})
		if err != nil {
			return err
		}
		if err := next(survey{found, found.known.names()}); !errors.Is(err, errStale) {
			return err
		}
	}
	return errStale
}

// holds reports whether keys that outlive the survey's moment by grace are still
// there, as far as the clocks are known.
func (r *Reader) holds(on survey, grace time.Duration) bool {
	now, _ := r.clocks.now(r.local())
	return now.milli-on.at.milli <= grace.Milliseconds()
}

// answerAt answers as Answer does, at the moment of a survey.
func (r *Reader) answerAt(ctx context.Context, on survey, questions []Question) (Answers, error) {
	plans, err := r.plan(on.known.layout, questions, on.at.milli)
	if err != nil {
		return Answers{}, err
	}
	found, err := r.readPlans(ctx, on.known, on.at, plans)
	if err != nil {
		return Answers{}, err
	}
	return found.answers(), nil
}
