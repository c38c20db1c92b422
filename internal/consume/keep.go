package consume

import (
	"context"
	"math/rand/v2"
	"time"
)

// keep runs one session after another, each with a new source, until ctx ends or the stream is
// gone. It reports whether the stream is gone, and whether hits are known to be lost with it. It
// shows the phase of the running session.
func (w *worker) keep(ctx context.Context, name string, show func(phase), newSource func() source) (isGone, lost bool) {
	log := w.log.With().Str("stream", name).Logger()
	w.metrics.start(name)
	defer w.metrics.end(name)
	defer w.waits.end(name)
	defer w.claims.forget(name)
	rejects := newRejectLog(log)
	defer func() { rejects.tell(time.Now(), true) }()
	enter := func(p phase) {
		if p == counting {
			w.waits.end(name)
		}
		show(p)
	}
	next, unread := firstTry(), false
	for ctx.Err() == nil {
		began := time.Now()
		w.metrics.sessions.WithLabelValues(name).Inc()
		s := &session{setup: setup{
			stream: name, source: newSource(), store: w.store, layout: w.layout, limits: w.limits(),
			metrics: w.metrics, outage: w.outage, waits: w.waits, clocks: w.clocks, rejects: rejects, rules: w.rules, log: log,
			progress: w.progress, maxIdle: next.maxIdle, enter: enter, listed: w.upToDate, claims: &w.claims,
		}}
		o := s.run(ctx)
		show(resuming) // the next session
		// A session that did not get to compare the cursors with the stream does not know.
		unread = o.unread || unread && o.phase == resuming
		next = next.after(o, time.Since(began))
		switch o.verdict {
		case drained:
			if o.phase >= counting {
				log.Info().Msg("stream let go")
			}
			return false, false
		case gone:
			unread = unread || !s.markEnded(ctx)
			log.Warn().Bool("hits_lost", unread).Msg("the stream is gone")
			return true, unread
		}
		w.waits.because(name, o.why)
		log.Warn().Err(o.why).Msg("taking the stream again")
		select {
		case <-ctx.Done():
		case <-time.After(next.pause + rand.N(next.pause+time.Millisecond)):
		}
	}
	return false, false
}

// What all streams of a worker may keep in memory together. When the worker takes a stream, it
// gives it a part that depends on how many streams the worker has then.
const (
	maxPullBytes = 64 << 20 // messages that the client holds
	maxBuffered  = 1 << 21  // commands in the filling halves of the buffers
)

func (w *worker) pullBytes() int { return maxPullBytes / w.parts() }

func (w *worker) limits() limits {
	l := w.settings.limits()
	l.maxBuffered = maxBuffered / w.parts()
	return l
}

func (w *worker) parts() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(1, w.streams)
}
