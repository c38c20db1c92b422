package window

import "context"

// Progress says how far the shards have got in one stream.
type Progress struct {
	Stream  string
	Counted bool   // every shard has a cursor
	Applied uint64 // the last sequence that has been applied to all counters; 0 before the first
	Stored  int64  // when the stream stored that message, Unix nanoseconds; 0 before the first
	AsOf    int64  // every hit that the stream stored before has been applied, Unix milliseconds
	Ended   int64  // when the stream was found gone, Unix milliseconds, or 0 while it lives
}

// Progress returns how far each listed stream is counted, by name, and the id of the namespace. It returns ErrNoLayout
// before the first worker has started, and a *ForeignError for a key that another program has written to.
func (r *Reader) Progress(ctx context.Context) (id string, streams []Progress, err error) {
	err = r.surveyed(ctx, func(found survey) error {
		id, streams = found.dir.id, make([]Progress, len(found.dir.streams))
		for i, stream := range found.dir.streams {
			cursors := make([]reply, len(found.shards))
			for shard, p := range found.shards {
				cursors[shard] = p.cursors[i]
			}
			p, err := progressOf(stream, found.dir.listed[stream], cursors, found.claims[stream])
			if err != nil {
				return err
			}
			streams[i] = p
		}
		return nil
	})
	return id, streams, err
}

// progressOf sums up the cursors of a stream. Those of an earlier incarnation of the stream say nothing
// about this one.
func progressOf(stream string, listed Listed, cursors []reply, claim Claim) (Progress, error) {
	out := Progress{Stream: stream, AsOf: listed.Created, Ended: listed.Ended}
	var all []record
	var created int64
	for _, cursor := range cursors {
		c, found, err := cursor.record()
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
