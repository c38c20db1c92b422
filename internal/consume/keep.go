package consume

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/window"
)

// keeper keeps streams flowing: for each it runs one session after another. The sessions share what it holds.
type keeper struct {
	settings Settings
	store    *window.Store
	layout   window.Layout
	metrics  *metrics
	outage   *outage
	waits    *waits
	clocks   *clocks
	rules    *rulebook // nil: INGEST_RULES is not set
	log      zerolog.Logger
	progress Progress                   // may be nil
	listed   func(context.Context) bool // see setup
	claims   claims
	share    atomic.Int64 // streams of the worker; 0 before that is known
}

// keep runs one session after another, each with a new source, until ctx ends or the stream is
// gone. It reports whether the stream is gone, and whether hits are known to be lost with it. It
// shows the phase of the running session.
func (k *keeper) keep(ctx context.Context, name string, show func(phase), newSource func() source) (isGone, lost bool) {
	log := k.log.With().Str("stream", name).Logger()
	k.metrics.start(name)
	defer k.metrics.end(name)
	defer k.waits.end(name)
	defer k.claims.forget(name)
	rejects := newRejectLog(log)
	defer func() { rejects.report(time.Now(), true) }()
	enter := func(p phase) {
		if p == counting {
			k.waits.end(name)
		}
		show(p)
	}
	next, unread := firstTry(), false
	for ctx.Err() == nil {
		began := time.Now()
		k.metrics.sessions.WithLabelValues(name).Inc()
		s := &session{setup: setup{
			stream: name, source: newSource(), store: k.store, layout: k.layout, limits: k.limits(),
			metrics: k.metrics, outage: k.outage, waits: k.waits, clocks: k.clocks, rejects: rejects, rules: k.rules, log: log,
			progress: k.progress, maxIdle: next.maxIdle, enter: enter, listed: k.listed, claims: &k.claims,
		}}
		o := s.attempt(ctx)
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
		k.waits.blame(name, o.why)
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

func (k *keeper) pullBytes() int { return maxPullBytes / k.parts() }

func (k *keeper) limits() limits {
	l := k.settings.limits()
	l.maxBuffered = maxBuffered / k.parts()
	return l
}

func (k *keeper) parts() int { return max(1, int(k.share.Load())) }

const (
	// maxReopen bounds the pause before the worker takes a stream again whose sessions keep failing.
	maxReopen = 2 * time.Second
	// foreignRetry is the pause before the worker takes a stream again if only a person can mend it: another program
	// has written to its cursor, rules are lost, or the stream is not the one that was counted.
	foreignRetry = 10 * time.Second
	// stalledAfter is how many looks in a row may find the reader idle although the stream holds
	// messages that it has not been given. If a session stalls without a message, the next one may be
	// idle for twice as many looks, up to maxStalledAfter.
	stalledAfter, maxStalledAfter = 3, 48
)

// retry is how the next session of a stream begins.
type retry struct {
	pause   time.Duration // before it
	maxIdle int           // see setup
}

func firstTry() retry { return retry{maxIdle: stalledAfter} }

// after returns the try that follows one with outcome o that lasted for the given time.
func (r retry) after(o outcome, lasted time.Duration) retry {
	next := retry{maxIdle: stalledAfter}
	if errors.Is(o.why, errStalled) && o.idle {
		next.maxIdle = min(2*r.maxIdle, maxStalledAfter)
	}
	switch {
	case window.IsForeign(o.why), errors.Is(o.why, errRulesLost), errors.Is(o.why, errUnidentified), errors.Is(o.why, errRetention):
		next.pause = foreignRetry
	case o.phase == resuming || o.verdict == fenced: // it never got going, or someone else has the stream
		next.pause = min(max(2*r.pause, 100*time.Millisecond), maxReopen)
	case lasted > maxReopen:
		next.pause = 0
	default:
		next.pause = min(r.pause+50*time.Millisecond, maxReopen)
	}
	return next
}
