package consume

import (
	"strings"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/hit"
	"tallyroll/internal/rules"
)

// origin is what of a message, beside its body, decides what rules make of it. With it, a reject can be read by
// other rules when it is published again.
type origin struct {
	subject string // empty: not known
	header  nats.Header
	size    int // bytes that it takes in a message
}

func newOrigin(d delivery) origin {
	o := origin{subject: d.subject}
	for name, values := range d.header {
		if rules.EventHeader(name) && len(values) > 0 {
			if o.header == nil {
				o.header = make(nats.Header)
			}
			o.header[name] = values[:1] // rules look at no other
		}
	}
	header := make(nats.Header)
	o.addTo(header, hit.OfMessage)
	o.size = headerSize(header)
	return o
}

// addTo adds what decides about a reject of a kind.
func (o *origin) addTo(h nats.Header, kind hit.Kind) {
	if o.subject != "" {
		h.Set(hit.HeaderSubject, o.subject)
	}
	if kind == hit.OfHit {
		return
	}
	for name, values := range o.header {
		h[name] = values
	}
}

// maxSubject is the longest subject that is taken from a header, in bytes; rules have none longer.
const maxSubject = 1024

// originalSubject is the subject by which the rules of a message are found, and its counter if it has no rules: that
// of the message that was refused, if this one is its reject published again, and otherwise its own. It depends on
// the message alone, so a replay finds the same.
func originalSubject(d delivery) string {
	if len(d.header) == 0 {
		return d.subject
	}
	of := d.header.Get(hit.HeaderSubject)
	if of == "" || len(of) > maxSubject || !isRedriven(d.subject) || !validSubject(of) {
		return d.subject
	}
	return of
}

// isRedriven reports whether a part of a subject is a reject's own.
func isRedriven(subject string) bool {
	return strings.HasPrefix(subject, hit.RedriveToken) || strings.Contains(subject, "."+hit.RedriveToken)
}
