package consume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/window"
)

// Marks tell readers of charts what happened to the counts. Nothing waits for them: a mark that cannot be written within
// markWithin, or for which there is no room, is forgotten.

const (
	// maxMarksWaiting is how many marks may wait to be written.
	maxMarksWaiting = 64
	// markWithin bounds a write.
	markWithin = time.Second
	// lateAfter is how far behind a stream must have fallen to be marked when it has caught up: a change of workers takes
	// less.
	lateAfter = time.Minute
)

// marks are on their way to Redis. A nil one takes none.
type marks chan window.Mark

func (m marks) put(mark window.Mark, log zerolog.Logger) {
	select {
	case m <- mark:
	default:
		log.Debug().Str("mark", mark.Detail).Msg("a mark is forgotten: there is no room for it")
	}
}

// KeepMarking writes marks until ctx ends.
func (k *Keeper) KeepMarking(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case mark := <-k.marks:
			writing, cancel := context.WithTimeout(ctx, markWithin)
			err := k.config.Store.PutMark(writing, mark)
			cancel()
			if err != nil {
				k.config.Log.Debug().Err(err).Str("mark", mark.Detail).Msg("a mark is forgotten: it could not be written")
			}
		}
	}
}

// Mark has a mark written, if there is room for it.
func (k *Keeper) Mark(m window.Mark) { k.marks.put(m, k.config.Log) }

// mark puts what happened to this stream.
func (s *setup) mark(m window.Mark) {
	m.Stream = s.stream
	s.marks.put(m, s.log)
}

// markLoss marks that hits from about a moment (Unix milliseconds) may be missing or counted twice. Losses of one kind
// share a mark per hour: each shard, or each flush, may find one.
func (s *setup) markLoss(at int64, detail string) {
	hour := time.Hour.Milliseconds()
	s.mark(window.Mark{At: at, Kind: window.MarkLoss, Detail: detail, Event: fmt.Sprint(at / hour)})
}

// lossMark is the mark of what the first cursor that admits it has found: hits may be missing that were stored after its
// place, or, if there was none, since the stream began, and before a moment (Unix milliseconds).
func lossMark(why reason, c window.Cursor, since, before int64) window.Mark {
	m := window.Mark{At: before, Kind: window.MarkLoss, Detail: reasons[why], Event: fmt.Sprintf("%s %d %d", why, c.Created, c.Seq)}
	if from := cmp.Or(max(c.AsOf, c.Stored/1e6), since); 0 < from && from < before {
		m.At, m.Until = from, before
	}
	return m
}

// namingMark is the mark of a version of a stream created at a moment (Unix nanoseconds) that begins at another one (Unix
// milliseconds).
func namingMark(next, before naming, created, at int64) window.Mark {
	m := window.Mark{At: at, Kind: window.MarkRules, Event: fmt.Sprint(created)}
	if next.Rules == before.Rules {
		m.Detail = fmt.Sprintf("the stream's subjects were edited: counters are named by them from message %d on", next.From)
	} else {
		m.Detail = fmt.Sprintf("the rules were changed from %s to %s: messages are read by them from message %d on",
			cmp.Or(before.Rules, "none"), cmp.Or(next.Rules, "none"), next.From)
	}
	return m
}

// lateness is since when a stream has been behind. Its sessions, which follow one another, share it. A nil one takes in
// nothing.
type lateness struct {
	from  int64 // Unix milliseconds: as_of when it fell behind; 0 if it has not
	young bool  // it was never counted up to its end: nobody misses it yet
}

// resume takes in the cursors from which a session goes on. All times are Unix milliseconds by the clock of NATS.
func (l *lateness) resume(cursors []window.Cursor, shards int, now int64) {
	switch {
	case l == nil:
	case len(cursors) < shards:
		l.young = true
	default:
		l.fall(slices.MinFunc(cursors, func(a, b window.Cursor) int { return cmp.Compare(a.AsOf, b.AsOf) }).AsOf, now)
	}
}

// fall notes that the stream is behind if it is.
func (l *lateness) fall(asOf, now int64) {
	if now-asOf > lateAfter.Milliseconds() && l.from == 0 && !l.young {
		l.from = asOf
	}
}

// observe takes in up to when the stream is counted. If it has caught up, it returns the mark of the time in which it was
// behind.
func (l *lateness) observe(asOf, now int64) (m window.Mark, caughtUp bool) {
	if l == nil {
		return m, false
	}
	if l.fall(asOf, now); now-asOf > farBehind.Milliseconds() {
		return m, false
	}
	m = window.Mark{At: l.from, Until: now, Kind: window.MarkLate, Detail: "counting was more than a minute behind, and has caught up"}
	caughtUp = l.from > 0
	*l = lateness{}
	return m, caughtUp
}
