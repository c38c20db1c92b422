package query

import (
	"context"
	"time"

	"tallyroll/internal/limit"
	"tallyroll/internal/window"
)

// maxJudged is the largest max of a judgement: whole numbers up to it are exact in every JSON reader.
const maxJudged = 1 << 53

// judge decides about a counter of the streams, from its rolling total. Nothing is counted: the
// streams do that.
func (s *service) judge(ctx context.Context, part string, item *takeItem) (*takeOutput, error) {
	j, err := judgementOf(item)
	if err != nil {
		return nil, inputProblem(err, part)
	}
	found, err := askRedis(ctx, s, func(ctx context.Context) (f fallen, err error) {
		f.answers, f.wait, err = s.reader.Fall(ctx, item.Key, j.length, j.most-j.n)
		return f, err
	})
	if err != nil {
		if bad := mendable(err); bad != nil {
			return nil, badInput("window", "%s: %v", item.Window, bad).problem(part)
		}
		return nil, err
	}
	total := &found.answers.Answers[0]
	answer := j.decide(total.Estimate, found.wait)
	out := lookOutputOf(&answer)
	out.Body.AsOf, out.Body.Complete = timeOf(found.answers.AsOf), &total.Complete
	return out, nil
}

// judgement is a question about a counter: may it have n more hits, with at most so many in the window?
type judgement struct {
	length  time.Duration
	most, n int64
}

// fallen is what the reader finds out about a judgement.
type fallen struct {
	answers window.Answers
	wait    time.Duration
}

func judgementOf(item *takeItem) (j judgement, err error) {
	if err := checkKey("key", item.Key); err != nil {
		return j, err
	}
	j.length, err = limitWindow("", item.Window)
	if err != nil {
		return j, err
	}
	if item.Max == "" {
		return j, badInput("max", "it is missing: say how many hits are allowed in the window")
	}
	j.most, err = item.Max.parse("max", 0, 1, maxJudged)
	if err != nil {
		return j, err
	}
	j.n, err = item.N.parse("n", 1, 0, j.most)
	return j, err
}

func (j judgement) decide(e window.Estimate, wait time.Duration) limit.Answer {
	d := limit.Decision{
		Take:    limit.Take{Limit: &limit.Limit{Window: j.length, Max: j.most}, N: j.n},
		Allowed: e.Total+j.n <= j.most,
		// It is certain if the smallest and the largest possible total lead to the same decision.
		Certain:   (e.Lower+j.n <= j.most) == (e.Upper+j.n <= j.most),
		Remaining: max(0, j.most-e.Total), RetryAfter: wait, Source: limit.FromRedis, Lower: e.Lower, Upper: e.Upper,
	}
	return limit.Answer{Allowed: d.Allowed, Decisions: []limit.Decision{d}}
}
