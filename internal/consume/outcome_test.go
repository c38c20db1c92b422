package consume

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
)

func TestSessionEndsByWhatEndedIt(t *testing.T) {
	t.Parallel()
	other := errors.New("anything")
	for _, test := range []struct {
		name    string
		why     error
		stopped bool
		want    verdict
	}{
		{"asked to stop", context.Canceled, true, drained},
		{"asked to stop while it fails", other, true, drained},
		{"asked to stop because the stream is gone", fmt.Errorf("look: %w", source.ErrNoStream), true, gone},
		{"the stream is gone", fmt.Errorf("look: %w", source.ErrNoStream), false, gone},
		{"another worker", fmt.Errorf("commit: %w", commit.ErrFenced), false, fenced},
		{"Redis has lost commits", commit.ErrRewound, false, failed},
		{"anything else", other, false, failed},
	} {
		if got := newOutcome(test.why, test.stopped); got.verdict != test.want || got.cause != test.why {
			t.Errorf("%s: %s (%v), want %s (%v)", test.name, got.verdict, got.cause, test.want, test.why)
		}
	}
}

// A stream that fails again and again is not asked for without a pause, and one that failed once is
// taken again at once.
func TestAStreamThatFailsAgainIsRetriedAfterAPause(t *testing.T) {
	t.Parallel()
	lost := outcome{verdict: failed, cause: errGap, phase: counting}
	stuck := outcome{verdict: failed, cause: fmt.Errorf("%w: at 1 of 2", errStalled), phase: counting, idle: true}
	for _, test := range []struct {
		name   string
		ends   []outcome
		lasted time.Duration
		want   backoff
	}{
		{"after a long session", []outcome{lost}, time.Minute, backoff{0, stalledAfter}},
		{"after short ones", []outcome{lost, lost, lost}, 0, backoff{150 * time.Millisecond, stalledAfter}},
		{"after many short ones", many(lost, 100), 0, backoff{maxReopen, stalledAfter}},
		{"it never got going", many(outcome{verdict: failed, cause: errGap}, 2), time.Minute, backoff{200 * time.Millisecond, stalledAfter}},
		{"again and again", many(outcome{verdict: failed, cause: errGap}, 9), 0, backoff{maxReopen, stalledAfter}},
		{"fenced", []outcome{{verdict: fenced, cause: commit.ErrFenced, phase: counting}}, time.Minute, backoff{100 * time.Millisecond, stalledAfter}},
		{"a foreign key", []outcome{{verdict: failed, cause: &window.ForeignError{Err: errGap}}}, 0, backoff{foreignRetry, stalledAfter}},
		{"stalled without a message", []outcome{stuck, stuck}, time.Minute, backoff{0, 4 * stalledAfter}},
		{"stalled for ever", many(stuck, 20), time.Minute, backoff{0, maxStalledAfter}},
		{"stalled, then not", []outcome{stuck, stuck, lost}, time.Minute, backoff{0, stalledAfter}},
		{"stalled after messages", []outcome{{verdict: failed, cause: errStalled, phase: counting}}, time.Minute, backoff{0, stalledAfter}},
	} {
		r := firstBackoff()
		for _, o := range test.ends {
			r = r.next(o, test.lasted)
		}
		if r != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, r, test.want)
		}
	}
}

func many(o outcome, n int) (out []outcome) {
	for range n {
		out = append(out, o)
	}
	return out
}

func (v verdict) String() string { return [...]string{"drained", "gone", "fenced", "failed"}[v] }
