package consume

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
)

// A stream may copy others. It then may not hold everything that was stored. Even if a worker
// has read such a stream to its end, hits may still be on their way to it.
//
// A mirror keeps the sequences and the times of its origin, so the worker asks the origin
// itself, and the mirror afterwards. If the mirror has the origin's last message, it has
// everything that the origin had stored when it answered. What the mirror reports about the link
// is not enough: "active" is set when a link is made anew, before anything has come over
// it, and "lag" is that of the last message that came (seen with nats-server 2.15).
//
// A stream with sources gives messages sequences and times of its own. For its as_of, a hit is
// stored when it arrives. Beyond the last message that arrived from any of them, the stream's end is
// known only up to the moment at which all sources were last heard.

const (
	// originWithin bounds all looks for one state of an origin in a cluster.
	originWithin = 4 * time.Second
	// sourceSilent is how long a source is not heard before the log says so. A server hears a
	// source that has nothing to say every second.
	sourceSilent = 5 * time.Second
)

var (
	errBehind = errors.New("it has messages that have not arrived")
	errSilent = fmt.Errorf("it has not been heard for %s", sourceSilent)
)

// originLook is what the origin of a mirror had stored when it was asked.
type originLook struct {
	state streamState
	err   error
}

// askOrigin asks the origin of a mirror. It must be called before the mirror itself is asked.
func (j *jetStreamSource) askOrigin(ctx context.Context) originLook {
	mirror := j.handle.CachedInfo().Config.Mirror
	if mirror == nil || j.far {
		return originLook{}
	}
	if j.origin == nil {
		js, err := boot.OriginJetStream(j.js, mirror.External)
		if err != nil {
			return originLook{err: err}
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

// bound moves the moment for which a state is known to be the end back to what is known about
// the origins. If nothing is known about them, that is the time of the last message.
func (j *jetStreamSource) bound(s *streamState, info *jetstream.StreamInfo, origin originLook) {
	s.mirror = info.Config.Mirror != nil
	why := j.boundMirror(s, info, origin)
	heard, whySource := heardSources(info)
	if whySource != nil {
		why = fmt.Errorf("stream %s has the source %w", j.name, whySource)
	}
	if why != nil && !errors.Is(why, errSilent) {
		s.at = min(s.at, s.endStored()/1e6)
	}
	s.at = min(s.at, heard)
	if j.unsure != nil && !errors.Is(why, errBehind) {
		j.unsure(why)
	}
}

// boundMirror bounds the end of a mirror by its origin's, or says why that is not known.
func (j *jetStreamSource) boundMirror(s *streamState, info *jetstream.StreamInfo, origin originLook) (why error) {
	if !s.mirror {
		return nil
	}
	s.clock = origin.state.clock // 0 if the origin is not known: the mirror's server may have another clock
	switch {
	case origin.err != nil:
		why = origin.err
	case j.far:
		why = errors.New("it is a mirror itself")
	case s.last < origin.state.last, s.endStored() < origin.state.endStored(): // or another incarnation's
		why = errBehind
	default:
		s.at = min(s.at, origin.state.at)
		return nil
	}
	return fmt.Errorf("stream %s mirrors %s: %w", j.name, info.Config.Mirror.Name, why)
}

// heardSources returns the moment at which all sources were last heard, in Unix milliseconds, and why
// one of them may have more.
func heardSources(info *jetstream.StreamInfo) (heard int64, why error) {
	heard = math.MaxInt64
	for _, source := range info.Sources {
		var trouble error
		switch {
		case source.Error != nil:
			trouble = source.Error
		case source.Active < 0:
			trouble = errors.New("it has not been heard yet")
		case source.Lag > 0:
			trouble = errBehind
		case source.Active > sourceSilent:
			trouble = errSilent
		}
		if source.Active >= 0 {
			heard = min(heard, info.TimeStamp.Add(-source.Active).UnixMilli())
		}
		if weight(trouble) > weight(why) {
			why = fmt.Errorf("%s: %w", source.Name, trouble)
		}
	}
	return heard, why
}

// weight orders troubles by what they leave known: of a silent source its last moment, of one that is behind
// that it is alive.
func weight(trouble error) int {
	switch {
	case trouble == nil:
		return 0
	case errors.Is(trouble, errSilent):
		return 1
	case errors.Is(trouble, errBehind):
		return 2
	}
	return 3
}

// newUnsureLog returns a function that logs why the end of a stream that copies others is not known. It
// does so once, and again only after the end was known in between.
func newUnsureLog(log zerolog.Logger, name string) func(error) {
	var unknown atomic.Bool
	return func(why error) {
		switch before := unknown.Swap(why != nil); {
		case why != nil && !before:
			log.Warn().Err(why).Str("stream", name).Msg("how far this copy has got is not known: as_of passes only what has arrived")
		case why == nil && before:
			log.Info().Str("stream", name).Msg("how far this copy has got is known again")
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
