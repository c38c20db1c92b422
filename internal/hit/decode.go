package hit

import (
	"fmt"
	"time"

	"tallyroll/internal/platform/human"
)

// Limits are a worker's bounds for hits, in addition to the rules for each hit.
type Limits struct {
	MaxAhead time.Duration // how much later than the time stored a hit's time may be
	MaxHits  int           // of one message

	// Place returns a counter's hash. late is empty, or why (human-readable) no tier still held the moment
	// when the message was stored. Times are Unix milliseconds. Place must be deterministic.
	Place func(counter []byte, at, stored int64) (hash uint64, late string)

	// Veto, if not nil, may refuse an object before it is read.
	Veto func(object []byte) *Refusal
}

// Decoder turns messages into hits and rejects. It reuses its memory and is not safe for concurrent use.
type Decoder struct {
	limits   Limits
	producer bool // the hits are not stored yet, so their times cannot be checked
	object   *object
	hits     []Hit
	rejects  []Reject

	// Of the current message:
	subject string
	stored  int64
}

// NewDecoder returns a Decoder with a worker's limits.
func NewDecoder(limits Limits) *Decoder {
	return &Decoder{limits: limits, object: newObject()}
}

// Decode reads a message that a stream stored at the Unix millisecond stored. subject is the counter of hits
// without a key. The result is valid until the next call, as long as body is not changed.
func (d *Decoder) Decode(subject string, stored int64, body []byte) ([]Hit, []Reject) {
	d.Begin(subject, stored)
	if Blank(body) {
		d.object.reset(stored)
		h := d.appendHit()
		refused := d.object.fill(h, subject)
		if refused == nil && !d.producer {
			refused = d.limits.Judge(h, stored)
		}
		d.finishHit(0, body, refused)
		return d.hits, d.rejects
	}
	objects := Split(body)
	for objects.Next() {
		switch {
		case objects.Wrong != "":
			d.reject(objects.Item, objects.Raw, BadJSON, objects.Wrong)
		case objects.Item == d.limits.MaxHits:
			d.hits, d.rejects = d.hits[:0], d.rejects[:0]
			d.reject(0, body, TooLarge, d.limits.TooMany())
			return d.hits, d.rejects
		default:
			d.finishHit(objects.Item, objects.Raw, d.read(d.appendHit(), objects.Raw))
		}
	}
	return d.hits, d.rejects
}

// Begin begins a message whose objects Object reads.
func (d *Decoder) Begin(subject string, stored int64) {
	d.hits, d.rejects = d.hits[:0], d.rejects[:0]
	d.object.clearNames()
	d.subject, d.stored = subject, stored
}

// Object reads an object of the message. The hit is valid until the next message begins.
func (d *Decoder) Object(raw []byte) (h Hit, refused *Refusal) {
	refused = d.read(&h, raw)
	return h, refused
}

func (d *Decoder) read(h *Hit, raw []byte) (refused *Refusal) {
	if d.limits.Veto != nil {
		refused = d.limits.Veto(raw)
	}
	if refused == nil {
		refused = d.object.read(h, raw, d.subject, d.stored)
	}
	if refused == nil && !d.producer {
		refused = d.limits.Judge(h, d.stored)
	}
	if refused == nil && d.producer && h.At != NoTime && h.At < earliest {
		refused = &Refusal{TooLate, fmt.Sprintf("ts %d is %s: no tier holds hits from before the year 2000%s", h.At,
			Moment(h.At), inMillis(h.At))}
	}
	return refused
}

// appendHit appends an empty hit and returns it: to copy a hit costs as much as to read a field.
func (d *Decoder) appendHit() *Hit {
	d.hits = append(d.hits, Hit{})
	return &d.hits[len(d.hits)-1]
}

// finishHit keeps the hit of room, or replaces it by a reject.
func (d *Decoder) finishHit(item int, raw []byte, refused *Refusal) {
	if refused != nil {
		d.hits = d.hits[:len(d.hits)-1]
		d.reject(item, raw, refused.Reason, refused.Detail)
	}
}

// Judge completes a hit of a message stored at the Unix millisecond stored, or refuses it because of its
// time.
func (l *Limits) Judge(h *Hit, stored int64) *Refusal {
	if ahead := h.At - stored; ahead > l.MaxAhead.Milliseconds() {
		return &Refusal{Future, fmt.Sprintf("ts %d (%s) is %s later than the hit was stored (%s); at most %s are "+
			"allowed (INGEST_MAX_AHEAD)",
			h.At, Moment(h.At), human.Millis(ahead), Moment(stored), human.Duration(l.MaxAhead))}
	}
	// A hit counts no later than it was stored. Otherwise a cell would hold future hits, and lower would be
	// too high.
	h.At = min(h.At, stored)
	hash, late := l.Place(h.Counter, h.At, stored)
	if late != "" {
		return &Refusal{TooLate, late + inMillis(h.At)}
	}
	h.Hash = hash
	return nil
}

// earliest is the year 2000. No tier reaches back more than ten years, so producers can refuse earlier hits
// without knowing tiers or time. All Unix seconds, read as milliseconds, are before it.
const earliest = 946_684_800_000

// inMillis returns a hint for a time that is too early and may be in Unix seconds; else "".
func inMillis(at int64) string {
	const from, to = earliest / 1000, 4_102_444_800 // the years 2000 to 2099
	if at < from || at >= to {
		return ""
	}
	return fmt.Sprintf("; ts is Unix milliseconds: %s is %d", Moment(at*1000), at*1000)
}

// TooMany returns the detail for a message that has more than MaxHits hits.
func (l *Limits) TooMany() string {
	return fmt.Sprintf("the message carries more than %d hits: send smaller batches or raise INGEST_MAX_HITS",
		l.MaxHits)
}

func (d *Decoder) reject(item int, body []byte, reason Reason, detail string) {
	d.rejects = append(d.rejects, Reject{Reason: reason, Detail: detail, Item: item, Body: body})
}

// Parser reads producers' hits, which name their counters. It reuses memory and is not safe for concurrent
// use.
type Parser struct{ bodies *Decoder }

func NewParser() *Parser {
	bodies := NewDecoder(Limits{})
	bodies.producer = true
	return &Parser{bodies}
}

// ParseBody reads a whole message's body, in each of its forms. Every object must have a key, so an empty
// body is refused. A body with more than maxHits hits is refused as a whole. Hits without ts have NoTime. The
// result is valid until the next call, as long as body is not changed.
func (p *Parser) ParseBody(body []byte, maxHits int) ([]Hit, []Reject) {
	p.bodies.limits.MaxHits = maxHits
	return p.bodies.Decode("", NoTime, body)
}

// Parse reads a JSON object with a key, possibly with white space around it. A hit without ts has NoTime. Its
// counter is valid until the next call. The error is a *Refusal.
func (p *Parser) Parse(line []byte) (Hit, error) {
	p.bodies.object.clearNames()
	var h Hit
	if refused := p.bodies.object.read(&h, line, "", NoTime); refused != nil {
		return Hit{}, refused
	}
	return h, nil
}
