package consume

import (
	"math"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
)

// backlogSpan is how often a worker that is far behind says so in its log. It is also
// the time over which the worker's speed is measured.
const backlogSpan = 10 * time.Second

// backlog follows how a session that is far behind catches up.
type backlog struct {
	since  time.Time // when it fell far behind; zero while it is not
	from   uint64    // where the reader was then
	logged time.Time
	seen   []sight // of the last backlogSpan
}

// sight is the places of the reader and of the stream's end at one moment.
type sight struct {
	at          time.Time
	place, last uint64
}

// observe notes where the reader and the stream's end are. The progress is empty while there is no
// backlog, and at the first sight of one, which shows no speed yet. due is whether the log should
// report it. caught is how long the backlog lasted, if it has just ended.
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
	due = now.Sub(b.logged) >= backlogSpan
	if due {
		b.logged = now
	}
	return p, due, 0
}

// observeBacklog says how long a session that is far behind still needs.
func (w *watcher) observeBacklog(place uint64, state streamState) {
	p, due, caught := w.backlog.observe(time.Now(), place, state.last, w.tail.gather(place) > 0)
	w.show(p)
	switch {
	case caught > 0:
		w.metrics.catchUp.WithLabelValues(w.stream).Set(0)
		w.log.Info().Stringer("after", caught.Round(time.Second)).Msg("caught up")
	case due:
		w.metrics.catchUp.WithLabelValues(w.stream).Set(p.Seconds())
		w.log.Info().Uint64("behind", p.Left).Float64("per_second", math.Round(p.PerSecond)).
			Func(func(e *zerolog.Event) {
				if math.IsInf(p.Seconds(), 1) {
					e.Str("left", "never at this rate: more is stored than read")
					return
				}
				e.Stringer("left", time.Duration(p.Seconds()*float64(time.Second)).Round(time.Second))
			}).Msg("catching up")
	}
}

// show passes on how much of the backlog is done to whoever watches the worker. An empty p ends it.
func (w *watcher) show(p boot.Progress) {
	if w.progress != nil {
		w.progress(w.stream, p)
	}
}
