package source

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/natsconn"
)

// A stream that copies others may lack stored hits: even at its end, hits may still be on their way to it.
//
// A mirror keeps the sequences and times of its origin, so the worker asks the origin, and the mirror
// afterwards. If the mirror has the origin's last message, it has everything that the origin had stored when
// it answered. The mirror's own report is not enough: "active" is set when a link is restored, before
// anything has come over it, and "lag" is that of the last message that came (seen with nats-server 2.15).
//
// A stream with sources assigns its own sequences and times. For its as_of, a hit is stored when it arrives.
// After the last one, its end is known only up to when all sources were last heard.

const (
	// originWithin bounds all looks for one state of an origin in a cluster.
	originWithin = 4 * time.Second
	// sourceSilent is the silence of a source after which it is logged. An idle source is heard every second.
	sourceSilent = 5 * time.Second
)

var (
	errBehind = errors.New("it has messages that have not arrived")
	errSilent = fmt.Errorf("it has not been heard for %s", sourceSilent)
)

// originLook is the state of a mirror's origin.
type originLook struct {
	state State
	err   error
}

// askOrigin asks a mirror's origin. It must be called before the mirror itself is asked.
func (j *JetStream) askOrigin(ctx context.Context) originLook {
	mirror := j.handle.CachedInfo().Config.Mirror
	if mirror == nil || j.far {
		return originLook{}
	}
	if j.origin == nil {
		js, err := natsconn.OriginJetStream(j.js, mirror.External)
		if err != nil {
			return originLook{err: err}
		}
		j.origin = &JetStream{js: js, name: mirror.Name, far: true}
	}
	first, err := j.origin.Look(ctx)
	if err != nil || !first.Reign.Clustered {
		return originLook{first.State, err}
	}
	ctx, cancel := context.WithTimeout(ctx, originWithin)
	defer cancel()
	state, err := Confirmed(ctx, j.origin)
	return originLook{state, err}
}

// bound moves At back to what is known of the origins, or without any knowledge to the last message's time.
func (j *JetStream) bound(s *State, info *jetstream.StreamInfo, origin originLook) {
	s.Mirror = info.Config.Mirror != nil
	why := j.boundMirror(s, info, origin)
	heard, whySource := heardSources(info)
	if whySource != nil {
		why = fmt.Errorf("stream %s has the source %w", j.name, whySource)
	}
	if why != nil && !errors.Is(why, errSilent) {
		s.At = min(s.At, s.EndStored()/1e6)
	}
	s.At = min(s.At, heard)
	if j.Unsure != nil && !errors.Is(why, errBehind) {
		j.Unsure(why)
	}
}

// boundMirror bounds the end of a mirror by its origin's, or returns why that is unknown.
func (j *JetStream) boundMirror(s *State, info *jetstream.StreamInfo, origin originLook) (why error) {
	if !s.Mirror {
		return nil
	}
	s.Clock = origin.state.Clock // 0 if the origin is not known: the mirror's server may have another clock
	switch {
	case origin.err != nil:
		why = origin.err
	case j.far:
		why = errors.New("it is a mirror itself")
	case s.Last < origin.state.Last, s.EndStored() < origin.state.EndStored(): // or another incarnation's
		why = errBehind
	default:
		s.At = min(s.At, origin.state.At)
		return nil
	}
	return fmt.Errorf("stream %s mirrors %s: %w", j.name, info.Config.Mirror.Name, why)
}

// heardSources returns when all sources were last heard, in Unix ms, and why one of them may have more.
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

// weight orders problems by what they leave known: of a silent source its last moment, of one that lags that
// it is alive.
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

// NewUnsureLog returns a function that logs why such a stream's end is unknown, once until it is known again.
func NewUnsureLog(log zerolog.Logger, name string) func(error) {
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

// Since is State.Since of a stream that is not read yet.
func Since(info *jetstream.StreamInfo) int64 {
	s := State{
		Created: info.Created.UnixNano(), Mirror: info.Config.Mirror != nil,
		First: info.State.FirstSeq, Last: info.State.LastSeq, FirstStored: info.State.FirstTime.UnixNano(),
	}
	if info.State.Msgs == 0 {
		s.First = s.Last + 1
	}
	return s.Since()
}
