package consume

import (
	"math"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
)

// backlogSpan is how often a worker that is far behind says so in its log, and the
// time over which its speed is measured.
const backlogSpan = 10 * time.Second

// backlog is how a session that is far behind catches up.
type backlog struct {
	since  time.Time // it has been far behind since then; zero while it is not
	from   uint64    // where the reader was then
	logged time.Time
	seen   []sight // of the last backlogSpan
}

// sight is where the reader and the stream's end were at a moment.
type sight struct {
	at          time.Time
	place, last uint64
}

// observe takes note of where the reader and the stream's end are. The progress
// is empty while there is no backlog, and at its first sight, which shows no speed yet. due is
// whether the log should tell of it; caught is how long the backlog lasted, when it is over.
func (b *backlog) observe(now time.Time, place, last uint64, far bool) (p boot.Progress, due bool, caught time.Duration) {
	if !far {
		if !b.since.IsZero() {
			caught = now.Sub(b.since)
		}
		*b = backlog{}
		return p, false, caught
	}
	if b.since.IsZero() {
		*b = backlog{since: now, from: place, logged: now}
	}
	b.seen = append(b.seen, sight{now, place, last})
	for len(b.seen) > 2 && now.Sub(b.seen[1].at) >= backlogSpan {
		b.seen = b.seen[1:]
	}
	first := b.seen[0]
	seconds := now.Sub(first.at).Seconds()
	if seconds == 0 {
		return p, false, 0
	}
	read := float64(place - first.place)
	p = boot.Progress{
		Done: place - b.from, Left: last - place,
		PerSecond: read / seconds, Gained: (read - (float64(last) - float64(first.last))) / seconds,
	}
	if due = now.Sub(b.logged) >= backlogSpan; due {
		b.logged = now
	}
	return p, due, 0
}

// observeBacklog says how long a session that is far behind still needs.
func (s *session) observeBacklog(b *backlog, place uint64, state streamState) {
	p, due, caught := b.observe(time.Now(), place, state.last, s.tail.gather(place) > 0)
	s.show(p)
	switch {
	case caught > 0:
		s.metrics.catchUp.WithLabelValues(s.stream).Set(0)
		s.log.Info().Stringer("after", caught.Round(time.Second)).Msg("caught up")
	case due:
		s.metrics.catchUp.WithLabelValues(s.stream).Set(p.Seconds())
		s.log.Info().Uint64("behind", p.Left).Float64("per_second", math.Round(p.PerSecond)).
			Func(func(e *zerolog.Event) {
				if math.IsInf(p.Seconds(), 1) {
					e.Str("left", "never at this rate: more is stored than read")
					return
				}
				e.Stringer("left", time.Duration(p.Seconds()*float64(time.Second)).Round(time.Second))
			}).Msg("catching up")
	}
}

// show tells whoever watches the worker how far the backlog is worked off; an empty p ends it.
func (s *session) show(p boot.Progress) {
	if s.progress != nil {
		s.progress(s.stream, p)
	}
}
