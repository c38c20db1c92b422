package consume

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/source"
	"tallyroll/internal/window"
)

// Config configures a Keeper.
type Config struct {
	Store    *window.Store
	Layout   window.Layout // of the namespace in Store
	Limits   Limits
	Metrics  *Metrics
	Waits    *Waits
	Rules    *Rulebook // nil: messages carry hits
	Log      zerolog.Logger
	Progress Progress // may be nil
	// Listed reports whether all streams created before the call are listed; nil: always. While not, as_of
	// does not move.
	Listed func(context.Context) bool
}

// Keeper runs one session after another for each stream. It is safe for concurrent use, but only one
// goroutine at a time may keep a stream.
type Keeper struct {
	config Config
	outage *outage
	clocks *clocks
	claims claims
	share  atomic.Int64 // streams among which memory is divided; 0 before the first Divide
}

// NewKeeper returns a Keeper that keeps no stream yet.
func NewKeeper(config Config) *Keeper {
	return &Keeper{config: config, outage: &outage{log: config.Log}, clocks: newClocks(config.Metrics, config.Log)}
}

// Keep runs one session after another, each with a new source, until ctx ends or the stream is gone. It
// returns whether the stream is gone, and whether hits are known to be lost with it. It calls show with
// whether a session reads the stream. newSource gets the bytes of messages that the source may hold.
func (k *Keeper) Keep(
	ctx context.Context, name string, reportReading func(reading bool), newSource func(bytes int) source.Stream,
) (isGone, lost bool) {
	log := k.config.Log.With().Str("stream", name).Logger()
	k.config.Metrics.start(name)
	defer k.config.Metrics.end(name)
	defer k.config.Waits.end(name)
	defer k.claims.forget(name)
	rejects := newRejectLog(log)
	defer func() { rejects.report(time.Now(), true) }()
	enter := func(p phase) {
		if p == counting {
			k.config.Waits.end(name)
		}
		reportReading(p >= counting)
	}
	next, unread := firstRetry(), false
	for ctx.Err() == nil {
		began := time.Now()
		k.config.Metrics.sessions.WithLabelValues(name).Inc()
		s := &session{setup: setup{
			stream: name, source: newSource(maxPullBytes / k.parts()), store: k.config.Store,
			layout: k.config.Layout, limits: k.limits(), metrics: k.config.Metrics, outage: k.outage,
			waits: k.config.Waits, clocks: k.clocks, rejects: rejects, rulebook: k.config.Rules, log: log,
			progress: k.config.Progress, maxIdle: next.maxIdle, enterPhase: enter,
			allListed: k.config.Listed, claims: &k.claims,
		}}
		o := s.attempt(ctx)
		reportReading(false) // until the next session counts
		// A session that ended before it compared the cursors with the stream does not know.
		unread = o.unread || unread && o.phase == resuming
		next = next.next(o, time.Since(began))
		switch o.verdict {
		case drained:
			if o.phase >= counting {
				log.Info().Msg("stream released")
			}
			return false, false
		case gone:
			unread = unread || !s.markEnded(ctx)
			log.Warn().Bool("hits_lost", unread).Msg("the stream is gone")
			return true, unread
		}
		k.config.Waits.setCause(name, o.cause)
		log.Warn().Err(o.cause).Msg("restarting the session")
		select {
		case <-ctx.Done():
		case <-time.After(next.pause + rand.N(next.pause+time.Millisecond)):
		}
	}
	return false, false
}

// maxPullBytes bounds the messages that the client holds for all streams together. A session's share of it,
// and of Limits.MaxLoad, depends on the number of streams when it begins.
const maxPullBytes = 64 << 20

func (k *Keeper) limits() Limits {
	l := k.config.Limits
	l.MaxLoad /= k.parts()
	return l
}

func (k *Keeper) parts() int { return max(1, int(k.share.Load())) }

// Divide divides the memory among this many streams: each session that begins from now on gets one part.
func (k *Keeper) Divide(streams int) { k.share.Store(int64(streams)) }

// KeepClaiming writes the claims about idle streams, once per second until ctx ends.
func (k *Keeper) KeepClaiming(ctx context.Context) {
	k.claims.writePeriodically(ctx, k.config.Store, k.config.Listed, k.config.Log)
}

// KeepSweeping removes texts of rules that no cursor names, once per hour until ctx ends.
func (k *Keeper) KeepSweeping(ctx context.Context) {
	(&sweeper{store: k.config.Store, layout: k.config.Layout, log: k.config.Log}).sweepPeriodically(ctx)
}
