package consume

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A stream may copy others. What it holds is then not all that was stored, and that
// it has been read to its end says nothing of the hits that are still on their way.
//
// A mirror keeps the sequences and the times of its origin, so the origin is asked
// itself: what it had stored when it answered is in the mirror if the mirror, asked
// afterwards, has its last message. What the mirror reports of the link will not do:
// "active" is set when a link is made anew, before anything has come over it, and
// "lag" is that of the last message that came (seen with nats-server 2.15).
//
// A stream with sources gives messages sequences and times of its own. For its as_of
// a hit is stored when it arrives; but the end is only as of when the sources were heard.

// originWithin bounds all looks for one state of an origin in a cluster.
const originWithin = 4 * time.Second

var errBehind = errors.New("it has messages that have not arrived")

// originLook is what the origin of a mirror had stored.
type originLook struct {
	state streamState
	err   error
}

// askOrigin asks before the mirror is asked itself.
func (j *jetStreamSource) askOrigin(ctx context.Context) originLook {
	mirror := j.handle.CachedInfo().Config.Mirror
	if mirror == nil || j.far {
		return originLook{}
	}
	if j.origin == nil {
		js := j.js
		if mirror.External != nil && mirror.External.APIPrefix != "" {
			var err error
			if js, err = jetstream.NewWithAPIPrefix(j.js.Conn(), mirror.External.APIPrefix); err != nil {
				return originLook{err: err}
			}
		}
		j.origin = &jetStreamSource{js: js, name: mirror.Name, far: true}
	}
	first, err := j.origin.look(ctx)
	if err != nil || !first.reign.clustered {
		return originLook{first.state, err}
	}
	ctx, cancel := context.WithTimeout(ctx, originWithin)
	defer cancel()
	state, err := confirmed(ctx, j.origin)
	return originLook{state, err}
}

// bound sets the moment at which a state was the end back to what is known of the
// origins, and to the last message if that is nothing.
func (j *jetStreamSource) bound(s *streamState, info *jetstream.StreamInfo, origin originLook) {
	known, why := s.at, error(nil)
	if s.mirror = info.Config.Mirror != nil; s.mirror {
		known = origin.state.at
		switch {
		case origin.err != nil:
			why = origin.err
		case j.far:
			why = errors.New("it is a mirror itself")
		case s.last < origin.state.last, s.endStored() < origin.state.endStored(): // or another incarnation's
			why = errBehind
		}
		if why != nil {
			why = fmt.Errorf("stream %s mirrors %s: %w", j.name, info.Config.Mirror.Name, why)
		}
	}
	for _, source := range info.Sources {
		switch {
		case source.Error != nil:
			why = source.Error
		case source.Active < 0:
			why = errors.New("it has not been heard yet")
		case source.Lag > 0:
			why = errBehind
		default:
			known = min(known, info.TimeStamp.Add(-source.Active).UnixMilli())
			continue
		}
		why = fmt.Errorf("stream %s has the source %s: %w", j.name, source.Name, why)
		break
	}
	if why != nil {
		known = s.endStored() / 1e6
	}
	s.at = min(s.at, known)
	if j.unsure != nil && !errors.Is(why, errBehind) {
		j.unsure(why)
	}
}

// sayUnsure says once, and again after it was known, why the end of a stream that copies others is not.
func (w *worker) sayUnsure(name string) func(error) {
	var said atomic.Bool
	return func(why error) {
		switch was := said.Swap(why != nil); {
		case why != nil && !was:
			w.log.Warn().Err(why).Str("stream", name).Msg("how far this copy has got is not known: as_of stays at its last message")
		case why == nil && was:
			w.log.Info().Str("stream", name).Msg("how far this copy has got is known again")
		}
	}
}

// sinceOf is streamState.since of a stream that is not read yet.
func sinceOf(info *jetstream.StreamInfo) int64 {
	s := streamState{
		created: info.Created.UnixNano(), mirror: info.Config.Mirror != nil,
		first: info.State.FirstSeq, last: info.State.LastSeq, firstStored: info.State.FirstTime.UnixNano(),
	}
	if info.State.Msgs == 0 {
		s.first = s.last + 1
	}
	return s.since()
}
