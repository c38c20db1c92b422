package consume

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/hit"
	"tallyroll/internal/human"
	"tallyroll/internal/rejects"
	"tallyroll/internal/rules"
	"tallyroll/internal/source"
	"tallyroll/internal/trace"
	"tallyroll/internal/window"
)

// reader decodes what the stream delivers, in order, into the buffer. Only the feed's goroutine uses it.
type reader struct {
	*setup
	decoder
	buffer   *buffer
	begun    uint64      // reading began after this message: the versions of later ones are at hand
	expected uint64      // number of the next delivery
	lost     bool        // a delivery was unexpected: the reader ignores all later ones
	fail     func(error) // ends the session
}

func newReader(setup *setup, standing *standing, buffer *buffer, fail func(error)) *reader {
	return &reader{
		setup: setup, decoder: newDecoder(setup.stream, setup.limits.HitLimits(setup.layout), standing.names, standing.sets),
		buffer: buffer, begun: standing.from, expected: 1, fail: fail,
	}
}

// deliver handles one message. While it blocks, the feed stops, and the stream holds the rest.
func (r *reader) deliver(d source.Delivery) {
	switch {
	case r.lost: // a flush may still be under way: no message after the loss may join it, whatever its number
		return
	case d.Nth != r.expected:
		r.lost = true
		r.fail(fmt.Errorf("%w: delivery %d of %s came instead of %d", errGap, d.Nth, r.stream, r.expected))
		return
	case d.Seq <= r.begun:
		r.lost = true
		r.fail(fmt.Errorf("%w: message %d of %s came, and reading began after %d", errGap, d.Seq, r.stream, r.begun))
		return
	}
	r.expected++
	m := message{seq: d.Seq, stored: d.Stored}
	if d.Skip != "" {
		r.metrics.skipped.WithLabelValues(r.stream, d.Skip).Inc()
	} else {
		r.read(d, &m)
	}
	if err := r.buffer.add(r.stream, m); errors.Is(err, errGap) {
		r.lost = true
		r.fail(err)
	}
}

// decoder decodes messages, which must come in order, each by its version.
type decoder struct {
	decode *hit.Decoder // of messages whose version has no rules
	ruled  ruledDecoder
	names  namer
}

func newDecoder(stream string, limits hit.Limits, names namings, sets map[string]*rules.Set) decoder {
	return decoder{decode: hit.NewDecoder(limits), ruled: newRuledDecoder(stream, limits, sets), names: newNamer(names)}
}

func (r *decoder) read(d source.Delivery, m *message) {
	r.names.reach(d.Seq)
	if r.names.rules != "" {
		d.Subject = rejects.OriginalSubject(d.Subject, d.Header)
	}
	m.counter = r.names.counter(d.Seq, d.Subject)
	if r.names.rules == "" {
		m.hits, m.rejects = r.decode.Decode(m.counter, d.Stored/1e6, d.Data)
	} else {
		m.hits, m.rejects, m.unmet = r.ruled.decode(r.names.rules, d, m.counter)
	}
	if len(m.rejects) == 0 {
		return
	}
	m.trace = trace.Parent(d.Header)
	if r.names.rules != "" {
		m.origin = rejects.NewOrigin(d.Subject, d.Header)
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

func (r *ruledDecoder) decode(fingerprint string, d source.Delivery, counter string) ([]hit.Hit, []hit.Reject, int) {
	if r.inForce != fingerprint {
		// The session has read the rules of all versions that it needs.
		r.inForce, r.decoder = fingerprint, rules.NewDecoder(r.sets[fingerprint].ForStream(r.stream), r.limits)
		r.header = func(name string) string { return r.headers.Get(name) }
	}
	m := rules.Message{Subject: d.Subject, Counter: counter, Stored: d.Stored / 1e6, Body: d.Data}
	if len(d.Header) > 0 {
		r.headers, m.Header = d.Header, r.header
	}
	return r.decoder.Decode(m)
}

// subjects finds the counter in a message's subject: what the wildcards of the stream's subject match.
type subjects struct{ filters [][]string }

func newSubjects(filters []string) subjects {
	var s subjects
	for _, f := range filters {
		s.filters = append(s.filters, strings.Split(f, "."))
	}
	return s
}

// counter joins the tokens that the first matching filter's wildcards match. Without wildcards, or without a
// filter (a mirror), it returns the whole subject.
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

// placeIn returns a function that hashes a counter. late says why a hit is late: no tier still held its time.
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
