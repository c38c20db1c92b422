package read

import (
	"math"

	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

type progress struct {
	allRead       bool  // every live stream has a cursor, and it is known when counting began
	began         int64 // when counting began; 0 if unknown
	latest        int64 // there may be hits up to this moment, by NATS's clock
	asOf          int64 // the earliest of the live streams; if all have ended, when the last one ended
	completeSince int64 // the moment from which nothing is known to be missing
	declared      schema.Declaration

	cursors []cluster.Reply // by stream
}

// with returns the progress of another shard, too; p is nil for the first.
func (p *progress) with(o *progress) *progress {
	if p == nil {
		return o
	}
	out := &progress{allRead: p.allRead && o.allRead, began: max(p.began, o.began), latest: max(p.latest, o.latest),
		asOf: min(p.asOf, o.asOf), completeSince: max(p.completeSince, o.completeSince)}
	if p.began == 0 || o.began == 0 {
		out.began = 0
	}
	return out
}

// whole returns the moment from which nothing is known to be missing; later than any range if unknown.
func (p *progress) whole() int64 {
	if !p.allRead {
		return math.MaxInt64
	}
	return p.completeSince
}

// parseProgress parses a shard's cursors, in the order of the directory's streams. Counting began with the
// oldest stream: a younger one does not affect what was counted before, and an ended one is not waited for. A
// live stream without a cursor is counted up to its creation, and what is missing from it is unknown. A
// declaration in a cursor moves when counting began.
func parseProgress(dir *schema.Directory, cursors []cluster.Reply, claims map[string]schema.Claim) (*progress, error) {
	out := &progress{began: dir.Began, cursors: cursors}
	var lastEnd int64
	anyRead := dir.Began > 0
	waitsFor, unread := false, false // there is a live stream; there is one without a cursor
	for i, cursor := range cursors {
		listed := dir.Listed[dir.Streams[i]]
		c, found, err := schema.ParseCursorReply(cursor)
		if err != nil {
			return nil, err
		}
		c.Cursor = claims[dir.Streams[i]].Renew(c.Cursor)
		lastEnd = max(lastEnd, listed.Ended)
		if listed.Ended > 0 && !c.Ended && c.IncompleteBefore < listed.Ended {
			// No worker reads the stream any more, so what Redis has lost since it ended stays undetected.
			out.completeSince = max(out.completeSince, listed.Ended)
		}
		if c.IsTorn() {
			out.completeSince = math.MaxInt64 // until a worker reports the loss
		}
		if listed.Ended == 0 {
			asOf := listed.Created
			if found {
				asOf = c.AsOf
			}
			if !waitsFor || asOf < out.asOf {
				waitsFor, out.asOf = true, asOf
			}
			unread = unread || !found
		}
		if !found {
			continue
		}
		if created := c.Created / 1e6; !anyRead || created < out.began {
			out.began = created
		}
		anyRead = true
		if d := c.Declared; d.From > 0 && (out.declared.From == 0 || d.From < out.declared.From) {
			out.declared = d
		}
		out.latest = max(out.latest, c.AsOf, c.LatestHit())
		out.completeSince = max(out.completeSince, c.IncompleteBefore)
	}
	if !waitsFor && anyRead {
		out.asOf = lastEnd
	}
	out.allRead = anyRead && !unread
	if d := out.declared.From; d > 0 && d < out.began {
		out.began = d
	}
	out.completeSince = max(out.completeSince, out.began)
	return out, nil
}
