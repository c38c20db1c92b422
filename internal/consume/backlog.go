package consume

import (
	"math"
	"time"

	"github.com/rs/zerolog"
)

// backlogSpan is how often a worker that is far behind says so, and the time over
// which its speed is measured.
const backlogSpan = 10 * time.Second

// backlog is how a session that is far behind catches up.
type backlog struct {
	since time.Time // it has been far behind since then; zero while it is not

	// When the speed was last taken, and what was read and stored by then.
	at          time.Time
	place, last uint64
}

// speed is how a backlog has changed over a span of time.
type speed struct {
	behind    uint64  // messages
	perSecond float64 // messages read
	left      float64 // seconds until the end is reached, at what is read and stored; +Inf where it moves away
}

// observe takes note of where the reader and the stream's end are. measured is
// false until a span has passed; caught is how long the backlog lasted, when it is over.
func (b *backlog) observe(now time.Time, place, last uint64, far bool) (s speed, measured bool, caught time.Duration) {
	switch {
	case !far && b.since.IsZero():
		return s, false, 0
	case !far:
		caught = now.Sub(b.since)
		*b = backlog{}
		return s, false, caught
	case b.since.IsZero():
		*b = backlog{since: now, at: now, place: place, last: last}
		return s, false, 0
	case now.Sub(b.at) < backlogSpan:
		return s, false, 0
	}
	seconds := now.Sub(b.at).Seconds()
	read := float64(place) - float64(b.place)
	s = speed{behind: last - place, perSecond: read / seconds, left: math.Inf(1)}
	if gained := read - (float64(last) - float64(b.last)); gained > 0 {
		s.left = float64(s.behind) / gained * seconds
	}
	b.at, b.place, b.last = now, place, last
	return s, true, 0
}

// observeBacklog says how long a session that is far behind still needs.
func (s *session) observeBacklog(b *backlog, place uint64, state streamState) {
	at, measured, caught := b.observe(time.Now(), place, state.last, s.tail.gather(place) > 0)
	switch {
	case caught > 0:
		s.metrics.catchUp.WithLabelValues(s.stream).Set(0)
		s.log.Info().Stringer("after", caught.Round(time.Second)).Msg("caught up")
	case measured:
		s.metrics.catchUp.WithLabelValues(s.stream).Set(at.left)
		s.log.Info().Uint64("behind", at.behind).Float64("per_second", math.Round(at.perSecond)).
			Func(func(e *zerolog.Event) {
				if math.IsInf(at.left, 1) {
					e.Str("left", "never at this rate: more is stored than read")
					return
				}
				e.Stringer("left", time.Duration(at.left*float64(time.Second)).Round(time.Second))
			}).Msg("catching up")
	}
}
