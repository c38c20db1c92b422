package consume

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/window"
)

// Keeper runs one session after another for each stream. It is safe for concurrent use, but only one
// goroutine at a time may keep a stream.
type Keeper struct {
	config Config
	outage *outage
	clocks *clocks
	claims claims
	logged sync.Map     // see setup.overflows
	share  atomic.Int64 // streams among which memory is divided; 0 before the first Divide
}

// NewKeeper returns a Keeper that keeps no stream yet.
func NewKeeper(config Config) *Keeper {
	return &Keeper{config: config, outage: &outage{log: config.Log}, clocks: newClocks(config.Metrics, config.Log)}
}

// Keep runs one session after another, each with a new source, until ctx ends or the stream is gone. It
// returns whether the stream is gone, and whether hits are known to be lost with it. It calls reportReading
// with whether a session reads the stream. newSource gets the bytes of messages that the source may hold.
func (k *Keeper) Keep(ctx context.Context, name string, reportReading func(bool),
	newSource func(bytes int) source.Stream) (isGone, lost bool) {
	config := k.config
	config.Log = config.Log.With().Str("stream", name).Logger()
	config.Metrics.start(name)
	defer config.Metrics.end(name)
	defer config.Waits.end(name)
	defer k.claims.forget(name)
	defer config.Copies.forget(name)
	rejects := newRejectLog(config.Log)
	defer func() { rejects.report(time.Now(), true) }()
	enter := func(p phase) {
		if p == counting {
			config.Waits.end(name)
		}
		reportReading(p >= counting)
	}
	next, unread := firstBackoff(), false
	var stands error // why the stream stands still as a copy
	for ctx.Err() == nil {
		began := time.Now()
		config.Metrics.sessions.WithLabelValues(name).Inc()
		config.Limits.MaxLoad = k.config.Limits.MaxLoad / k.parts()
		s := &session{setup: setup{
			Config: config, stream: name, source: newSource(maxPullBytes / k.parts()), outage: k.outage,
			clocks: k.clocks, claims: &k.claims, rejects: rejects, overflows: &k.logged, maxIdle: next.maxIdle,
			enterPhase: enter,
		}}
		o := s.attempt(ctx)
		reportReading(false) // until the next session counts
		// A session that ended before it compared the cursors with the stream does not know.
		unread = o.unread || unread && o.phase == resuming
		next = next.next(o, time.Since(began))
		switch o.verdict {
		case drained:
			if o.phase >= counting {
				config.Log.Info().Msg("stream released")
			}
			return false, false
		case gone:
			unread = stands == nil && (unread || !s.markEnded(ctx))
			config.Log.Warn().Bool("hits_lost", unread).Msg("the stream is gone")
			return true, unread
		}
		o.cause = redisconn.Explain(o.cause)
		config.Waits.setCause(name, o.cause)
		if errors.Is(o.cause, window.ErrBare) {
			config.Log.Error().Err(o.cause).Msg("the stream is not counted any more, and answers are incomplete: let " +
				"the Redis user run MULTI, and restart this worker")
			<-ctx.Done() // the next refusal could count these hits again
			return false, false
		}
		before := stands
		if stands = nil; errors.Is(o.cause, ErrCopy) {
			stands = o.cause
		}
		if before == nil || stands == nil {
			config.Log.Warn().Err(o.cause).Msg("restarting the session")
		}
		_ = wait.Sleep(ctx, next.pause+rand.N(next.pause+time.Millisecond))
	}
	return false, false
}

// maxPullBytes bounds the messages that the client holds for all streams together. A session's share of it,
// and of Limits.MaxLoad, depends on the number of streams when it begins.
const maxPullBytes = 64 << 20

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
