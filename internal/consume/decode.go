package consume

import (
	"context"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/hit"
	"tallyroll/internal/platform/trace"
	"tallyroll/internal/rejects"
	"tallyroll/internal/rules"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// decoder decodes messages, which must come in order, each by its version.
type decoder struct {
	hits   *hit.Decoder // for messages whose version has no rules, and for increments
	events eventDecoder
	names  namer
}

func newDecoder(stream string, limits hit.Limits, names namings, sets map[string]*rules.Set) decoder {
	return decoder{
		hits: hit.NewDecoder(limits), events: eventDecoder{stream: stream, limits: limits, sets: sets},
		names: newNamer(names),
	}
}

// skipReason returns why a message counts nothing here, or "". It puts the message's version in force.
func (r *decoder) skipReason(d source.Delivery) string {
	r.names.advance(d.Seq)
	if len(r.names.origins) > 0 && d.Skip == "" {
		for _, origin := range source.OriginsOf(d.Header) {
			if slices.Contains(r.names.origins, origin) {
				return source.SkippedCopy
			}
		}
	}
	return d.Skip
}

func (r *decoder) read(d source.Delivery, m *message) {
	r.names.advance(d.Seq)
	if r.names.rules != "" {
		d.Subject = rejects.OriginalSubject(d.Subject, d.Header)
	}
	m.counter = r.names.counter(d.Seq, d.Subject)
	increment := d.Header.Get(hit.IncrementHeader) // only NATS's own counters have it
	switch {
	case increment != "" && r.names.rules == "":
		m.hits, m.rejects = r.hits.DecodeIncrement(m.counter, d.Stored/1e6, increment, d.Data)
	case r.names.rules == "":
		m.hits, m.rejects = r.hits.Decode(m.counter, d.Stored/1e6, d.Data)
	default:
		m.hits, m.rejects, m.unmet = r.events.decode(r.names.rules, d, m.counter)
	}
	if len(m.rejects) == 0 {
		return
	}
	m.trace, m.increment = trace.Parent(d.Header), increment[:min(len(increment), maxIncrement)]
	if r.names.rules != "" {
		m.origin = rejects.NewOrigin(d.Subject, d.Header)
	}
}

// maxIncrement bounds an increment in a reject, in bytes: NATS's have any length.
const maxIncrement = 64

// eventDecoder decodes messages by the rules of their versions, which follow one another.
type eventDecoder struct {
	stream string
	limits hit.Limits
	sets   map[string]*rules.Set

	inForce string // fingerprint of the rules in force
	decoder *rules.Decoder
	headers nats.Header              // of the current message
	header  func(name string) string // reads headers; one function for all messages
}

func (r *eventDecoder) decode(fingerprint string, d source.Delivery, counter string) ([]hit.Hit, []hit.Reject, int) {
	if r.inForce != fingerprint {
		// The resume plan has the rules of all versions that are needed.
		r.inForce, r.decoder = fingerprint, rules.NewDecoder(r.sets[fingerprint].ForStream(r.stream), r.limits)
		r.header = func(name string) string { return r.headers.Get(name) }
	}
	m := rules.Message{Subject: d.Subject, Counter: counter, Stored: d.Stored / 1e6, Body: d.Data,
		Increment: d.Header.Get(hit.IncrementHeader)}
	if len(d.Header) > 0 {
		r.headers, m.Header = d.Header, r.header
	}
	return r.decoder.Decode(m)
}

// Trial reads messages as a worker with these rules does. It is not safe for concurrent use.
type Trial struct{ decoder }

// NewTrial prepares to read messages of a stream whose subjects name no counters.
func NewTrial(stream string, limits hit.Limits, set *rules.Set) *Trial {
	f := set.Fingerprint()
	return &Trial{newDecoder(stream, limits, namings{{From: 1, Rules: f}}, map[string]*rules.Set{f: set})}
}

// Read returns what a message counts, valid until the next call. unmet is as in rules.Decoder.
func (t *Trial) Read(d source.Delivery) (hits []hit.Hit, rejects []hit.Reject, unmet int) {
	var m message
	t.read(d, &m)
	return m.hits, m.rejects, m.unmet
}

// Recount reads messages again exactly as the workers that counted them. It is not safe for concurrent use.
type Recount struct {
	decoder
	unknown uint64 // no cursor lists the versions of messages up to this one
	sets    map[string]*rules.Set
}

// NewRecount prepares to read messages that these cursors of one stream have applied. subjects name counters
// if no cursor lists a version.
func NewRecount(
	ctx context.Context, store *schema.Store, layout window.Layout, limits Limits,
	stream string, subjects []string, cursors []window.Cursor,
) (*Recount, error) {
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
		set, found, err := (*Rulebook)(nil).lookup(ctx, store, n.Rules)
		if err != nil {
			return nil, err
		}
		if found {
			sets[n.Rules] = set
		}
	}
	return &Recount{newDecoder(stream, limits.HitLimits(layout), names, sets), names.lastUnlisted(0), sets}, nil
}

// Read returns the hits of a message, valid until the next call, and how many parts of it were refused.
// Messages must come in order. known is false if the rules of the message's version are lost.
func (r *Recount) Read(d source.Delivery) (hits []hit.Hit, refused int, known bool) {
	skip := r.skipReason(d)
	if d.Seq <= r.unknown || r.names.rules != "" && r.sets[r.names.rules] == nil {
		return nil, 0, false
	}
	if skip != "" {
		return nil, 0, true
	}
	var m message
	r.read(d, &m)
	return m.hits, len(m.rejects), true
}
