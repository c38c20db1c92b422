package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A stream's Raft leader answers for it. A leader that was cut off or paused may not yet have noticed that
// another was elected: for up to ten seconds, or for an instant after it wakes, its answers are stale. If a
// worker used one, as_of would cover hits that only the new leader has stored, or the stream would look
// rolled back or recreated, and hits would count again. So an answer counts only if, some time after it, the
// same leader in the same term has a majority.

const (
	// confirmAfter is how long after an answer the leader must have heard a follower. When a paused server
	// wakes, it receives what was on its way, including old replies of its followers. By the end of this time
	// it has also read that it is deposed.
	confirmAfter = 500 * time.Millisecond
	// checkPause is the pause between checks. An idle stream's followers are heard once per second.
	checkPause = 100 * time.Millisecond
	// CheckWithin bounds one check: during an election, no server answers.
	CheckWithin = time.Second
	// confirmWithin bounds all checks for one state: an election takes 4 to 9 seconds.
	confirmWithin = 12 * time.Second
)

// ErrUnconfirmed means that no majority behind a stream's leader could be shown.
var ErrUnconfirmed = errors.New("no majority of the stream's servers has confirmed its leader")

func newLeadership(c *jetstream.ClusterInfo) Leadership {
	if c == nil || c.Name == "" {
		return Leadership{}
	}
	r := Leadership{Clustered: true, Leader: c.Leader}
	if c.LeaderSince != nil {
		r.Since = *c.LeaderSince
	}
	var silences []time.Duration
	for _, follower := range c.Replicas {
		if follower.Active > 0 { // 0: the follower was never heard
			silences = append(silences, follower.Active)
		}
	}
	slices.Sort(silences)
	needed := (len(c.Replicas) + 1) / 2 // with the leader, a majority
	r.Majority = needed <= len(silences)
	if r.Majority && needed > 0 {
		r.Silence = silences[needed-1]
	}
	return r
}

// same reports whether both checks were answered by the same leader in the same term.
func (c Check) same(earlier Check) bool {
	return c.Leadership.Leader != "" && c.Leadership.Leader == earlier.Leadership.Leader &&
		c.Leadership.Since.Equal(earlier.Leadership.Since)
}

// confirms reports whether the leader of an earlier check still led when it answered. It counts from the time
// of the request, because the reply can only be younger.
func (c Check) confirms(earlier Check) bool {
	return c.same(earlier) && c.Leadership.Majority &&
		!c.Asked.Add(-c.Leadership.Silence).Before(earlier.Answered.Add(confirmAfter))
}

// Confirmed returns the state from a server that certainly led the stream after the call began, or
// ErrUnconfirmed after confirmWithin. The contents are those of the last check, but At is that of the first:
// what was on its way to the followers then is committed by the last.
func Confirmed(ctx context.Context, s Stream) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmWithin)
	defer cancel()
	var first Check
	var failed error
	for {
		now, err := s.Check(ctx)
		pause := checkPause
		switch {
		case errors.Is(err, ErrNoStream):
			return State{}, err
		case err != nil:
			failed = err
		case !now.Leadership.Clustered:
			return now.State, nil
		case now.confirms(first):
			now.State.At = first.State.At
			return now.State, nil
		case now.same(first):
			failed = nil
		default:
			first, failed, pause = now, nil, confirmAfter
		}
		select {
		case <-ctx.Done():
			if failed == nil {
				failed = fmt.Errorf("%w: leader %q has not heard enough of its followers", ErrUnconfirmed,
					first.Leadership.Leader)
			}
			return State{}, failed
		case <-time.After(pause):
		}
	}
}
