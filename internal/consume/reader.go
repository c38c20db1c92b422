package consume

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/hit"
	"tallyroll/internal/human"
	"tallyroll/internal/rejects"
	"tallyroll/internal/rules"
	"tallyroll/internal/window"
)

// reader decodes what the stream delivers, in order, into the buffer. Only the feed's goroutine uses it.
type reader struct {
	*setup
	decode   *hit.Decoder // of messages whose version has no rules
	ruled    ruledDecoder
	names    namer
	buffer   *buffer
	begun    uint64      // reading began after this message: the versions of later ones are at hand
	expected uint64      // number of the next delivery
	lost     bool        // a delivery was unexpected: the reader ignores all later ones
	fail     func(error) // ends the session
}

func newReader(setup *setup, standing *standing, buffer *buffer, fail func(error)) *reader {
	limits := hitLimits(setup.layout, setup.limits.maxAhead, setup.limits.maxHits)
	return &reader{
		setup: setup, decode: hit.NewDecoder(limits), ruled: newRuledDecoder(setup.stream, limits, standing.sets),
		names: newNamer(standing.names), buffer: buffer, begun: standing.from, expected: 1, fail: fail,
	}
}

// deliver handles one message. While it blocks, the feed stops, and the stream holds the rest.
func (r *reader) deliver(d delivery) {
	switch {
	case r.lost: // a flush may still be under way: no message after the loss may join it, whatever its number
		return
	case d.nth != r.expected:
		r.lost = true
		r.fail(fmt.Errorf("%w: delivery %d of %s came instead of %d", errGap, d.nth, r.stream, r.expected))
		return
	case d.seq <= r.begun:
		r.lost = true
		r.fail(fmt.Errorf("%w: message %d of %s came, and reading began after %d", errGap, d.seq, r.stream, r.begun))
		return
	}
	r.expected++
	m := message{seq: d.seq, stored: d.stored}
	if d.skip != "" {
		r.metrics.skipped.WithLabelValues(r.stream, d.skip).Inc()
	} else {
		r.read(d, &m)
	}
	if err := r.buffer.add(r.stream, m); errors.Is(err, errGap) {
		r.lost = true
		r.fail(err)
	}
}

// read decodes a message by the version that it belongs to.
func (r *reader) read(d delivery, m *message) {
	r.names.reach(d.seq)
	if r.names.rules != "" {
		d.subject = rejects.OriginalSubject(d.subject, d.header)
	}
	m.counter = r.names.counter(d.seq, d.subject)
	if r.names.rules == "" {
		m.hits, m.rejects = r.decode.Decode(m.counter, d.stored/1e6, d.data)
		return
	}
	m.hits, m.rejects, m.unmet = r.ruled.decode(r.names.rules, d, m.counter)
	if len(m.rejects) > 0 {
		m.origin = rejects.NewOrigin(d.subject, d.header)
	}
}

// ruledDecoder decodes messages by the rules of their versions, which follow one another.
type ruledDecoder struct {
	stream string
	limits hit.Limits
	sets   map[string]*rules.Set

	inForce string // fingerprint of the rules in force
	decoder *rules.Decoder
	headers nats.Header              // of the message that is read
	header  func(name string) string // looks into headers, so that no message needs a function of its own
}

func newRuledDecoder(stream string, limits hit.Limits, sets map[string]*rules.Set) ruledDecoder {
	return ruledDecoder{stream: stream, limits: limits, sets: sets}
}

func (r *ruledDecoder) decode(fingerprint string, d delivery, counter string) ([]hit.Hit, []hit.Reject, int) {
	if r.inForce != fingerprint {
		// The session has found the rules of all versions that it reads by.
		r.inForce, r.decoder = fingerprint, rules.NewDecoder(r.sets[fingerprint].For(r.stream), r.limits)
		r.header = func(name string) string { return r.headers.Get(name) }
	}
	m := rules.Message{Subject: d.subject, Counter: counter, Stored: d.stored / 1e6, Body: d.data}
	if len(d.header) > 0 {
		r.headers, m.Header = d.header, r.header
	}
	return r.decoder.Decode(m)
}

// subjects finds the counter in a message's subject: it is the part that the wildcards of
// the stream's subject matched.
type subjects struct{ filters [][]string }

func newSubjects(filters []string) subjects {
	var s subjects
	for _, f := range filters {
		s.filters = append(s.filters, strings.Split(f, "."))
	}
	return s
}

// counter joins the tokens that the first matching filter's wildcards matched.
// A filter without wildcards, or no filter at all (a mirror), gives the whole subject.
func (s subjects) counter(subject string) string {
	for _, filter := range s.filters {
		if c, ok := matched(filter, subject); ok {
			return c
		}
	}
	return subject
}

func matched(filter []string, subject string) (counter string, ok bool) {
	rest := subject
	for i, want := range filter {
		if want == ">" && i == len(filter)-1 {
			return join(counter, rest), rest != ""
		}
		token, after, more := strings.Cut(rest, ".")
		switch {
		case token == "", more != (i < len(filter)-1):
			return "", false
		case want == "*":
			counter = join(counter, token)
		case want != token:
			return "", false
		}
		rest = after
	}
	if counter == "" {
		counter = subject
	}
	return counter, true
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "." + b
}

// HitLimits are the bounds that a worker with these settings, which are validated, sets for hits.
func (s *Settings) HitLimits() hit.Limits {
	return hit.Limits{MaxAhead: s.MaxAhead, MaxHits: s.MaxHits, Place: placeIn(s.layout)}
}

// hitLimits are the bounds of hits that are counted in this layout.
func hitLimits(layout window.Layout, maxAhead time.Duration, maxHits int) hit.Limits {
	return hit.Limits{MaxAhead: maxAhead, MaxHits: maxHits, Place: placeIn(layout)}
}

// placeIn returns a function that hashes a counter, and returns a text if a time was so early that no tier
// held it any more when the hit was stored.
func placeIn(layout window.Layout) func(counter []byte, at, stored int64) (hash uint64, late string) {
	return func(counter []byte, at, stored int64) (uint64, string) {
		hash := window.HashCounter(counter)
		if layout.Holds(hash, at, stored) {
			return hash, ""
		}
		return hash, fmt.Sprintf("ts %d (%s) is %s earlier than the hit was stored (%s); %s (ts is in Unix milliseconds)",
			at, hit.Moment(at), human.Millis(stored-at), hit.Moment(stored), layout.Tiers.Reach())
	}
}
