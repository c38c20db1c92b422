package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A NATS cluster answers for a stream through the stream's Raft leader. A leader
// that was cut off or paused does not know at once that another was elected: for
// up to ten seconds, or for the instant in which it wakes, it answers from a past.
// Believed, such an answer makes as_of claim hits that the new leader has stored,
// and looks like a stream that was rolled back or made anew, for which hits are
// counted again. So an answer is believed only when the same leader, in the same
// reign, has been heard to have a majority behind it some time after it.

const (
	// settle is how long after an answer a follower must have been heard. What was on
	// its way to a server when it was paused reaches it when it wakes, old replies of
	// its followers among it; by then it has also read that it is deposed.
	settle = 500 * time.Millisecond
	// lookAgain is the pause between looks. Followers of an idle stream are heard once a second.
	lookAgain = 100 * time.Millisecond
	// lookWithin bounds one answer: while a leader is elected none comes.
	lookWithin = time.Second
	// confirmWithin bounds all looks for one state: an election takes 4 to 9 seconds.
	confirmWithin = 12 * time.Second
)

// errUnconfirmed says that a stream's leader is not known to have a majority behind it.
var errUnconfirmed = errors.New("no majority of the stream's servers has confirmed its leader")

// look is one answer about a stream, and what it shows of the server that gave it.
type look struct {
	state    streamState
	reign    reign
	asked    time.Time // by this process's clock, as is answered
	answered time.Time
}

// reign is one leadership, as the leader sees it. Its zero value is that of a
// server without a cluster, whose answers need nobody's confirmation.
type reign struct {
	clustered bool
	leader    string    // empty while there is none: then any replica answers
	since     time.Time // zero where the server does not say
	majority  bool      // enough followers have been heard at all
	// silence is how long ago the followers that it takes were heard: all of them
	// have followed this leader until then, and no majority can be had without one of them.
	silence time.Duration
}

func newReign(c *jetstream.ClusterInfo) reign {
	if c == nil || c.Name == "" {
		return reign{}
	}
	r := reign{clustered: true, leader: c.Leader}
	if c.LeaderSince != nil {
		r.since = *c.LeaderSince
	}
	var silences []time.Duration
	for _, follower := range c.Replicas {
		if follower.Active > 0 { // 0 is a follower that was never heard
			silences = append(silences, follower.Active)
		}
	}
	slices.Sort(silences)
	needed := (len(c.Replicas) + 1) / 2 // with the leader, a majority
	if r.majority = needed <= len(silences); r.majority && needed > 0 {
		r.silence = silences[needed-1]
	}
	return r
}

// same reports whether both looks were at the same leader in the same reign.
func (l look) same(earlier look) bool {
	return l.reign.leader != "" && l.reign.leader == earlier.reign.leader && l.reign.since.Equal(earlier.reign.since)
}

// confirms reports whether this look shows that the leader of an earlier one led
// when it answered. It counts from the asking: the answer can only be younger.
func (l look) confirms(earlier look) bool {
	return l.same(earlier) && l.reign.majority && !l.asked.Add(-l.reign.silence).Before(earlier.answered.Add(settle))
}

// confirmed is the stream's state, from a server that is known to have led the
// stream after the call began; errUnconfirmed where none is found within
// confirmWithin. What it holds is the last look's, and at the first's: what
// was then on its way to the followers is committed too.
func confirmed(ctx context.Context, s source) (streamState, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmWithin)
	defer cancel()
	var first look
	var failed error
	for {
		now, err := s.look(ctx)
		pause := lookAgain
		switch {
		case errors.Is(err, errNoStream):
			return streamState{}, err
		case err != nil:
			failed = err
		case !now.reign.clustered:
			return now.state, nil
		case now.confirms(first):
			now.state.at = first.state.at
			return now.state, nil
		case now.same(first):
			failed = nil
		default:
			first, failed, pause = now, nil, settle
		}
		select {
		case <-ctx.Done():
			if failed == nil {
				failed = fmt.Errorf("%w: %s has not heard enough of its followers", errUnconfirmed, leaderName(first))
			}
			return streamState{}, failed
		case <-time.After(pause):
		}
	}
}

func leaderName(l look) string {
	if l.reign.leader == "" {
		return "nobody"
	}
	return l.reign.leader
}
