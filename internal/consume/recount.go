package consume

import (
	"context"
	"fmt"

	"tallyroll/internal/hit"
	"tallyroll/internal/rules"
	"tallyroll/internal/source"
	"tallyroll/internal/window"
)

// Recount reads messages again exactly as the workers that counted them. It is not safe for concurrent use.
type Recount struct {
	decoder
	unknown uint64 // the versions of messages up to this one are not listed any more
	sets    map[string]*rules.Set
}

// NewRecount prepares to read messages that these cursors of one stream have applied. subjects name counters
// if no cursor lists a version.
func NewRecount(ctx context.Context, store *window.Store, layout window.Layout, limits Limits, stream string, subjects []string, cursors []window.Cursor) (*Recount, error) {
	names, err := listedNamings(cursors)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", stream, err)
	}
	if len(names) == 0 {
		names = namings{{From: 1, Subjects: subjects}}
	}
	sets := make(map[string]*rules.Set)
	for _, n := range names {
		if n.Rules == "" || sets[n.Rules] != nil {
			continue
		}
		set, found, err := (*Rulebook)(nil).find(ctx, store, n.Rules)
		if err != nil {
			return nil, err
		}
		if found {
			sets[n.Rules] = set
		}
	}
	return &Recount{newDecoder(stream, limits.HitLimits(layout), names, sets), names.unknown(0), sets}, nil
}

// Read returns the hits of a message, valid until the next call, and how many parts of it were refused.
// Messages must come in order. known is false if the rules by which the message was read are lost.
func (r *Recount) Read(d source.Delivery) (hits []hit.Hit, refused int, known bool) {
	r.names.reach(d.Seq)
	if d.Seq <= r.unknown || r.names.rules != "" && r.sets[r.names.rules] == nil {
		return nil, 0, false
	}
	if d.Skip != "" {
		return nil, 0, true
	}
	var m message
	r.read(d, &m)
	return m.hits, len(m.rejects), true
}
