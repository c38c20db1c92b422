package worker

import (
	"context"
	"slices"
	"time"

	"tallyroll/internal/consume"
	"tallyroll/internal/consume/fleet"
	"tallyroll/internal/window/schema"
)

// goneFor is the time between the two checks that must both find the stream gone.
const goneFor = 4 * time.Second

// absence is when a stream was first found missing.
type absence struct {
	at     time.Time // by this process's monotonic clock
	server int64     // by the server's clock, which also stores messages, Unix milliseconds
}

// endings finds streams that were deleted, and ends those of which this worker is the leader. One goroutine
// uses it.
type endings struct {
	consume.Endings
	fleet    *fleet.Fleet
	readable func() fleet.Globs // the streams that the worker may read

	missing map[string]absence // streams that are no longer listed
}

// endDeleted ends deleted streams and returns the other missing ones. Missing are streams that the previous
// list (known) has, or that are live in Redis (listed; nil if Redis does not answer), but that all lacks. A
// list may be incomplete, so a stream counts as deleted only after the server has answered twice that it does
// not exist.
func (e *endings) endDeleted(ctx context.Context, known, all []string,
	listed map[string]schema.Listed) (still []string) {
	reads := e.readable()
	candidates := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return !e.fleet.AnyMayRead(name) })
	for name, l := range listed {
		if l.Ended == 0 && reads.Match(name) && e.fleet.IsLeader(name) {
			candidates = append(candidates, name)
		}
	}
	e.removeOld(ctx, listed)
	slices.Sort(candidates)
	missing := make(map[string]absence)
	for _, name := range slices.Compact(candidates) {
		if slices.Contains(all, name) {
			continue
		}
		gone, err := e.IsGone(ctx, name)
		if err == nil && !gone {
			still = append(still, name)
			continue
		}
		first, before := e.missing[name]
		if gone && !before {
			first.at = time.Now()
			first.server, err = e.ServerTime(ctx)
			before = err == nil
		}
		if before {
			missing[name] = first
		}
		switch {
		case err != nil, time.Since(first.at) < goneFor:
			if slices.Contains(known, name) {
				still = append(still, name)
			}
		case e.fleet.IsLeader(name):
			l, isListed := listed[name]
			if !isListed || l.Ended > 0 {
				continue
			}
			if err := e.End(ctx, name, l.Created, first.server); err != nil {
				e.Log.Warn().Err(err).Str("stream", name).Msg("a deleted stream still holds as_of back")
			}
		}
	}
	e.missing = missing
	return still
}

// removeOld unlists streams to whose end no window reaches, and removes cursors that late commits left.
func (e *endings) removeOld(ctx context.Context, listed map[string]schema.Listed) {
	keep, reads := e.Layout.Keep().Milliseconds(), e.readable()
	for name, l := range listed {
		// This worker's clock only saves requests: remove compares with the server's.
		if l.Ended == 0 || time.Now().UnixMilli() <= l.Ended+keep || !reads.Match(name) || !e.fleet.IsLeader(name) {
			continue
		}
		if err := e.Remove(ctx, name, l.Ended+keep); err != nil {
			e.Log.Warn().Err(err).Str("stream", name).Msg("a stream that ended long ago is still listed")
		}
	}
}
