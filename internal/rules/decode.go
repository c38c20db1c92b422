package rules

import "tallyroll/internal/hit"

// Decoder turns messages into hits and rejects. It reuses its memory, so only one goroutine may use it.
type Decoder struct {
	limits   hit.Limits
	matcher  matcher
	detector detector
	plain    *hit.Decoder // for messages and objects that no rule counts
	builder  hitBuilder
	texts    []byte // that the current event's values point to, like the body

	hits    []hit.Hit
	rejects []hit.Reject
	unmet   int
}

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

// NewDecoder returns a decoder for the messages of a stream with these rules.
func NewDecoder(r *Rules, limits hit.Limits) *Decoder {
	d := &Decoder{
		limits: limits, matcher: newMatcher(r.rules), detector: newDetector(), builder: hitBuilder{limits: limits},
	}
	plainLimits := limits
	plainLimits.Veto = d.detector.refuse
	d.plain = hit.NewDecoder(plainLimits)
	return d
}

// Decode reads a message. unmet is the number of events that nothing counted because of a rule's `when`. The
// result is valid until the next call, as long as the body is unchanged.
func (d *Decoder) Decode(m Message) (hits []hit.Hit, rejects []hit.Reject, unmet int) {
	d.hits, d.rejects, d.unmet, d.texts = d.hits[:0], d.rejects[:0], 0, reuse(d.texts)
	match := d.matcher.match(m.Subject)
	switch {
	case match.plan != nil:
		return d.decodeByRules(&m, match)
	case m.Increment != "":
		hits, rejects = d.plain.DecodeIncrement(m.Counter, m.Stored, m.Increment, m.Body)
		return hits, rejects, 0
	}
	mode, _ := detectMessageMode(m.Header)
	switch {
	case mode == NoCloudEvent:
		hits, rejects = d.plain.Decode(m.Counter, m.Stored, m.Body)
		for i := range rejects {
			if rejects[i].Reason == hit.NoRule {
				rejects[i].Kind = hit.OfEvent
			}
		}
		return hits, rejects, 0
	case mode == Binary, hit.Blank(m.Body):
		d.reject(&m, hit.OfMessage, 0, m.Body, noRule)
	default:
		d.decodeObjects(&m, nil, false)
	}
	return d.hits, d.rejects, 0
}

// decodeByRules decodes a message that rules match. On a subject of CloudEvents, each object of a body
// without a content mode is read as what it is, because collect joins hits of several callers with their
// events.
func (d *Decoder) decodeByRules(m *Message, match *subjectPlan) ([]hit.Hit, []hit.Reject, int) {
	increment, p := int64(0), match.plan
	if m.Increment != "" {
		n, refusal := hit.ParseIncrement(m.Increment)
		if refusal != nil {
			d.reject(m, hit.OfIncrement, 0, m.Body, refusal)
		}
		if n == 0 {
			return d.hits, d.rejects, 0
		}
		increment = n
	}
	d.builder.begin(match, m.Stored, increment)
	mode, names := NoCloudEvent, style(0)
	if p.cloud != nil {
		mode, names = detectMessageMode(m.Header)
	}
	mixed := p.cloud != nil && mode == NoCloudEvent
	switch {
	case p.format == None:
		d.countOrReject(m, hit.OfMessage, 0, m.Body, nil)
	case mode == Binary:
		var refusal *hit.Refusal
		d.texts, refusal = p.cloud.readBinary(d.texts, names, m.Header, m.Body)
		d.countOrReject(m, hit.OfMessage, 0, m.Body, refusal)
	case hit.Blank(m.Body): // another format may count it
		d.reject(m, hit.OfMessage, 0, m.Body, refusef(hit.BadJSON, "the body is empty: a rule with format none, "+
			"unlike that on line %d, counts messages without a body", p.rules[0].line))
	case mixed && !mayBeEvent(m.Body): // the usual case, in one pass
		hits, rejects := d.plain.Decode("", m.Stored, m.Body)
		return hits, rejects, 0
	default:
		d.decodeObjects(m, p, mixed)
	}
	return d.hits, d.rejects, d.unmet
}

// decodeObjects decodes a body that is not blank. Without a plan no rule matches. With mixed, each object
// that is no event is a hit. It must name its key, so that nothing counts by mistake.
func (d *Decoder) decodeObjects(m *Message, p *plan, mixed bool) {
	if mixed {
		d.plain.Begin("", m.Stored)
	}
	objects := hit.Split(m.Body)
	for objects.Next() {
		item, raw := objects.Item, objects.Raw
		switch {
		case objects.Wrong != "":
			d.reject(m, hit.OfEvent, item, raw, refusef(hit.BadJSON, "%s", objects.Wrong))
		case item == d.limits.MaxHits:
			d.hits, d.rejects, d.unmet = d.hits[:0], d.rejects[:0], 0
			d.reject(m, hit.OfEvent, 0, m.Body, refusef(hit.TooLarge, "%s", d.limits.TooMany()))
			return
		case p == nil:
			d.reject(m, hit.OfEvent, item, raw, noRule)
		case mixed && !d.detector.isEvent(raw):
			h, refusal := d.plain.Object(raw)
			if refusal == nil {
				d.hits = append(d.hits, h)
			} else {
				d.rejects = append(d.rejects, hit.Reject{
					Reason: refusal.Reason, Detail: refusal.Detail, Item: item, Body: raw,
				})
			}
		default:
			var refusal *hit.Refusal
			d.texts, refusal = p.readJSON(d.texts[:0], raw)
			d.countOrReject(m, hit.OfEvent, item, raw, refusal)
		}
	}
}

// countOrReject counts the event that was read, or rejects it.
func (d *Decoder) countOrReject(m *Message, kind hit.Kind, item int, raw []byte, refusal *hit.Refusal) {
	before, skipped := len(d.hits), false
	if refusal == nil {
		d.hits, skipped, refusal = d.builder.appendHits(d.hits)
	}
	switch {
	case refusal != nil:
		d.reject(m, kind, item, raw, refusal)
	case skipped && len(d.hits) == before:
		d.unmet++
	}
}

func (d *Decoder) reject(m *Message, kind hit.Kind, item int, raw []byte, refusal *hit.Refusal) {
	if m.Increment != "" {
		kind = hit.OfIncrement
	}
	d.rejects = append(d.rejects, hit.Reject{
		Reason: refusal.Reason, Detail: refusal.Detail, Item: item, Body: raw, Kind: kind,
	})
}
