package rules

import (
	"fmt"

	"github.com/go-faster/jx"

	"tallyroll/internal/hit"
)

type Message struct {
	Subject string
	// Header returns a header's first value, or "". Names are case-sensitive, as in nats.Header. May be nil.
	Header  func(name string) string
	Counter string // that the subject names, for a message without a rule
	Stored  int64  // when the stream stored it, in Unix milliseconds
	Body    []byte
	// Increment is the value of hit.IncrementHeader: counters without n count so many. Empty: it has none.
	Increment string
}

// Decoder turns messages into hits and rejects. It reuses its memory, so only one goroutine may use it.
type Decoder struct {
	limits            hit.Limits
	matcher           matcher
	hitDecoder        *hit.Decoder // for messages without a rule
	eventDetector     *tree        // detects CloudEvents in these
	splitter          hit.Splitter
	unmatchedSplitter hit.Splitter // rejects all events, because no rule matches
	mixedSplitter     hit.Splitter // decodes hits and CloudEvents

	hits    []hit.Hit
	rejects []hit.Reject
	names   []byte // of the hits' counters, and their unique values
	unmet   int

	// Of the current message and event.
	message        Message
	increment      int64    // of the message; 0: it has none
	kind           hit.Kind // of its rejects
	current        *subjectPlan
	skipped        bool // a condition has skipped a rule or element
	element        int  // index of the current element, or -1
	elementRefusal *hit.Refusal
	scratch        []byte
	texts          []byte // of headers, and of data
	array          jx.Decoder
}

// NewDecoder returns a decoder for the messages of a stream with these rules.
func NewDecoder(r *Rules, limits hit.Limits) *Decoder {
	d := &Decoder{limits: limits, eventDetector: newEventDetector()}
	d.matcher = newMatcher(r.rules, d.preparePlan)
	hitLimits := limits
	hitLimits.Veto = d.refuseCloudEvent
	d.hitDecoder = hit.NewDecoder(hitLimits)
	rejectJSON := func(item int, raw []byte, detail string) { d.reject(item, raw, hit.BadJSON, detail) }
	d.splitter = hit.Splitter{Most: limits.MaxHits, Item: d.decodeItem, Wrong: rejectJSON, TooMany: d.rejectTooMany}
	d.unmatchedSplitter = d.splitter
	d.unmatchedSplitter.Item = func(item int, raw []byte) bool {
		d.reject(item, raw, hit.NoRule, noRuleDetail)
		return true
	}
	d.mixedSplitter = d.splitter
	d.mixedSplitter.Item = d.decodeMixedItem
	return d
}

func (d *Decoder) preparePlan(p *plan) {
	for _, r := range p.rules {
		r.apply = func(j *jx.Decoder) error { return d.countElement(r, j) }
	}
}

// Decode reads a message. unmet is the number of events that nothing counted because of a rule's `when`. The
// result is valid until the next call, as long as the body is unchanged.
func (d *Decoder) Decode(m Message) (hits []hit.Hit, rejects []hit.Reject, unmet int) {
	d.hits, d.rejects, d.unmet = d.hits[:0], d.rejects[:0], 0
	d.names, d.texts = d.names[:0], d.texts[:0]
	d.message, d.kind, d.increment = m, hit.OfEvent, 0
	d.current = d.matcher.match(m.Subject)
	switch {
	case d.current.plan == nil && m.Increment != "":
		hits, rejects = d.hitDecoder.DecodeIncrement(m.Counter, m.Stored, m.Increment, m.Body)
		return hits, rejects, 0
	case d.current.plan == nil:
		return d.decodeWithoutRule()
	case m.Increment != "":
		n, refusal := hit.ParseIncrement(m.Increment)
		if refusal != nil {
			d.reject(0, m.Body, refusal.Reason, refusal.Detail)
		}
		if n == 0 {
			return d.hits, d.rejects, 0
		}
		d.increment = n
	}
	switch d.current.plan.format {
	case None:
		d.kind = hit.OfMessage
		d.countOrReject(0, m.Body, nil)
	case JSON:
		d.decodeBody()
	case CloudEvents:
		mode, style := detectMessageMode(m.Header)
		switch {
		case mode == Binary:
			d.kind = hit.OfMessage
			d.countOrReject(0, m.Body, d.readBinary(style))
		case mode == NoCloudEvent && !hit.Blank(m.Body):
			return d.decodeMixed()
		default:
			d.decodeBody()
		}
	}
	d.freeBuffers()
	return d.hits, d.rejects, d.unmet
}

func (d *Decoder) decodeBody() {
	if hit.Blank(d.message.Body) {
		d.kind = hit.OfMessage // another format may count it
		d.reject(0, d.message.Body, hit.BadJSON, fmt.Sprintf("the body is empty: a rule with format none, unlike that on line %d, counts messages without a body", d.current.plan.rules[0].line))
		return
	}
	d.splitter.Split(d.message.Body)
}

func (d *Decoder) decodeItem(item int, raw []byte) (more bool) {
	return d.countOrReject(item, raw, d.readEvent(raw))
}

func (d *Decoder) readEvent(raw []byte) *hit.Refusal {
	p := d.current.plan
	if len(raw) == 0 || raw[0] != '{' {
		return &hit.Refusal{Reason: hit.BadJSON, Detail: "an event is a JSON object"}
	}
	err := p.event.root.readAll(raw)
	switch {
	case err != nil:
		return &hit.Refusal{Reason: hit.BadJSON, Detail: "not a JSON object: " + err.Error()}
	case p.cloud != nil:
		return d.checkCloudEvent()
	}
	return nil
}

// countOrReject counts an event that was read, or rejects it.
func (d *Decoder) countOrReject(item int, raw []byte, refusal *hit.Refusal) (more bool) {
	hits, names := len(d.hits), len(d.names)
	d.skipped = false
	if refusal == nil {
		refusal = d.countEvent()
	}
	switch {
	case refusal != nil:
		d.hits, d.names = d.hits[:hits], d.names[:names]
		d.reject(item, raw, refusal.Reason, refusal.Detail)
	case d.skipped && len(d.hits) == hits:
		d.unmet++
	}
	return true
}

// maxHits bounds the hits of a message: MaxHits for each counter of the rules. Only arrays can exceed it, so
// an event without an array is never rejected because of others.
func (d *Decoder) maxHits() int { return d.limits.MaxHits * max(1, d.current.plan.counters) }

func (d *Decoder) newTooManyRefusal() *hit.Refusal {
	return &hit.Refusal{Reason: hit.TooLarge, Detail: fmt.Sprintf(
		"with its arrays, the message makes more than %d hits (INGEST_MAX_HITS for each counter of the rules): send its events apart, or smaller arrays", d.maxHits())}
}

// rejectTooMany rejects a message with too many objects.
func (d *Decoder) rejectTooMany(body []byte) {
	d.hits, d.rejects, d.unmet = d.hits[:0], d.rejects[:0], 0
	d.reject(0, body, hit.TooLarge, d.limits.TooMany())
}

func (d *Decoder) reject(item int, body []byte, reason hit.Reason, detail string) {
	kind := d.kind
	if d.message.Increment != "" {
		kind = hit.OfIncrement
	}
	d.rejects = append(d.rejects, hit.Reject{Reason: reason, Detail: detail, Item: item, Body: body, Kind: kind})
}

// freeBuffers frees buffers that an unusually long value has grown.
func (d *Decoder) freeBuffers() {
	const maxIdle = 64 << 10
	if cap(d.scratch) > maxIdle {
		d.scratch = nil
	}
	if cap(d.texts) > maxIdle {
		d.texts = nil
	}
}
