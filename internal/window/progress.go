package window

import (
	"context"
	"math"
)

type progress struct {
	allRead       bool  // every live stream has a cursor, and it is known when counting began
	began         int64 // when counting began; 0 if that is not known
	latest        int64 // there may be hits up to this moment, by NATS's clock
	asOf          int64 // the earliest of the live streams; if all have ended, when the last one ended
	completeSince int64 // the moment from which nothing is known to be missing

	cursors []Reply // by stream
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
// live stream without a cursor is counted up to its creation, and what is missing from it is unknown.
func parseProgress(dir *Directory, cursors []Reply, claims map[string]Claim) (*progress, error) {
	out := &progress{began: dir.Began, cursors: cursors}
	var lastEnd int64
	anyRead := dir.Began > 0
	waitsFor, unread := false, false // there is a live stream; there is one without a cursor
	for i, cursor := range cursors {
		listed := dir.Listed[dir.Streams[i]]
		c, found, err := ParseCursorReply(cursor)
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
			out.completeSince = math.MaxInt64 // until a worker admits it
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
		out.latest = max(out.latest, c.AsOf, c.LatestHit())
		out.completeSince = max(out.completeSince, c.IncompleteBefore)
	}
	if !waitsFor && anyRead {
		out.asOf = lastEnd
	}
	out.allRead = anyRead && !unread
	out.completeSince = max(out.completeSince, out.began)
	return out, nil
}

// Progress is how far the shards have got in one stream.
type Progress struct {
	Stream  string
	Counted bool   // every shard has a cursor
	Applied uint64 // the last sequence that has been applied to all counters; 0 before the first
	Stored  int64  // when the stream stored that message, Unix nanoseconds; 0 before the first
	AsOf    int64  // every hit that the stream stored before has been applied, Unix milliseconds
	Ended   int64  // when the stream was found gone, Unix milliseconds, or 0 while it lives
}

// Progress returns how far each listed stream is counted, by name, and the namespace's id. Errors are
// ErrNoLayout before the first worker has started, and a *ForeignError if another program has written to a
// key.
func (r *Reader) Progress(ctx context.Context) (id string, streams []Progress, err error) {
	streams, err = WithSurvey(ctx, r, func(found Survey) ([]Progress, error) {
		id = found.dir.Id
		streams := make([]Progress, len(found.dir.Streams))
		for i, stream := range found.dir.Streams {
			cursors := make([]Reply, len(found.shards))
			for shard, p := range found.shards {
				cursors[shard] = p.cursors[i]
			}
			var err error
			if streams[i], err = progressOf(stream, found.dir.Listed[stream], cursors, found.claims[stream]); err != nil {
				return nil, err
			}
		}
		return streams, nil
	})
	return id, streams, err
}

// progressOf combines the cursors of a stream. It ignores those of an earlier incarnation.
func progressOf(stream string, listed Listed, cursors []Reply, claim Claim) (Progress, error) {
	out := Progress{Stream: stream, AsOf: listed.Created, Ended: listed.Ended}
	var all []CursorRecord
	var created int64
	for _, cursor := range cursors {
		c, found, err := ParseCursorReply(cursor)
		if err != nil {
			return Progress{}, err
		}
		if found {
			c.Cursor = claim.Renew(c.Cursor)
			all = append(all, c)
			created = max(created, c.Created)
		}
	}
	first := true
	for _, c := range all {
		if c.Created != created {
			continue
		}
		if first || c.Seq < out.Applied {
			out.Applied, out.Stored = c.Seq, c.Stored
		}
		if first || c.AsOf < out.AsOf {
			out.AsOf = c.AsOf
		}
		first = false
	}
	out.Counted = len(all) == len(cursors) && len(all) > 0
	if !out.Counted {
		out.Applied, out.Stored = 0, 0
	}
	return out, nil
}
