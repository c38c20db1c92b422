package rules

import (
	"bytes"
	"cmp"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/go-faster/jx"

	"tallyroll/internal/hit"
)

// hitBuilder makes hits of the events that plans have read.
type hitBuilder struct {
	limits  hit.Limits
	names   []byte // of the hits' counters, and their unique values
	scratch []byte
	array   jx.Decoder

	// Of the current message:
	plan      *plan
	captures  []value
	stored    int64
	increment int64 // 0: it has none
	most      int   // hits
}

// begin begins a message, which invalidates the names of the previous one.
func (b *hitBuilder) begin(match *subjectPlan, stored, increment int64) {
	b.plan, b.captures, b.stored, b.increment = match.plan, match.captures, stored, increment
	b.names, b.scratch = b.names[:0], reuse(b.scratch)
	// MaxHits for each counter of the rules. Only arrays can exceed it, so an event without an array is never
	// rejected because of others.
	b.most = b.limits.MaxHits * max(1, match.plan.counters)
}

// reuse empties a buffer. It frees one that an unusually long value has grown.
func reuse(b []byte) []byte {
	const maxIdle = 64 << 10
	if cap(b) > maxIdle {
		return nil
	}
	return b[:0]
}

// appendHits appends the hits of the plan's event, all or none. skipped means that a condition has skipped a
// rule or an element.
func (b *hitBuilder) appendHits(hits []hit.Hit) (out []hit.Hit, skipped bool, refusal *hit.Refusal) {
	names := len(b.names)
	out = hits
	for _, r := range b.plan.rules {
		skips, element := false, -1
		if r.each == nil {
			out, skips, refusal = b.appendByRule(out, r)
		} else {
			out, skips, element, refusal = b.appendEach(out, r)
		}
		if refusal != nil {
			b.names = b.names[:names]
			return hits, false, r.locate(refusal, element)
		}
		skipped = skipped || skips
	}
	return out, skipped, nil
}

// appendEach applies a rule to each element of its array. With a refusal, element is the last one.
func (b *hitBuilder) appendEach(
	hits []hit.Hit, r *plannedRule,
) (out []hit.Hit, skipped bool, element int, refusal *hit.Refusal) {
	array := r.each.value()
	if array.kind != kindArray {
		return hits, false, -1, refusef(hit.BadJSON, "%s is %s: each needs an array", r.path, array)
	}
	b.array.ResetBytes(array.text)
	elements, err := b.array.ArrIter()
	for element = -1; err == nil && elements.Next(); {
		element++
		b.array.Next() // skips white space, which Raw would return
		err = r.element.root.read(&b.array)
		if err != nil {
			break
		}
		skips := false
		hits, skips, refusal = b.appendByRule(hits, r)
		if refusal != nil {
			return hits, false, element, refusal
		}
		skipped = skipped || skips
	}
	err = cmp.Or(err, elements.Err())
	if err != nil {
		return hits, false, element, refusef(hit.BadJSON, "%s: %v", r.path, err)
	}
	return hits, skipped, element, nil
}

// appendByRule applies a rule once, to the event or to the element that was read. With a refusal, the hits
// that it returns are of no use.
func (b *hitBuilder) appendByRule(
	hits []hit.Hit, r *plannedRule,
) (out []hit.Hit, skipped bool, refusal *hit.Refusal) {
	for i := range r.when {
		c := &r.when[i]
		if !c.reference.value(b.captures).equals(c.want, b.scratch) {
			return hits, true, nil
		}
	}
	at, refusal := b.readTime(r)
	if refusal != nil {
		return hits, false, refusal
	}
	for i := range r.count {
		c := &r.count[i]
		hits = append(hits, hit.Hit{Counter: c.fixed, N: cmp.Or(c.n, b.increment, 1), At: at})
		h := &hits[len(hits)-1] // in place: to copy a hit costs as much as to read a field
		counts, refusal := b.fill(h, c)
		switch {
		case refusal != nil:
		case !counts:
			hits = hits[:len(hits)-1]
			continue
		case len(hits) > b.most:
			refusal = refusef(hit.TooLarge, "with its arrays, the message makes more than %d hits "+
				"(INGEST_MAX_HITS for each counter of the rules): send its events apart, or smaller arrays", b.most)
		default:
			refusal = b.limits.Judge(h, b.stored)
		}
		if refusal != nil {
			return hits, false, refusal
		}
	}
	return hits, false, nil
}

// readTime returns the time of the event or element, in Unix milliseconds.
func (b *hitBuilder) readTime(r *plannedRule) (int64, *hit.Refusal) {
	if r.time == nil {
		return b.stored, nil
	}
	v := r.time.value(b.captures)
	if r.timeOptional && v.isMissing() {
		return b.stored, nil
	}
	at, ok := v.parseInteger()
	if !ok {
		text, isTime := v.appendTo(b.scratch[:0])
		b.scratch = text
		if !isTime || v.kind == kindInteger || v.kind == kindBool {
			return 0, refusef(hit.BadTime, "time: %s is %s: must be Unix milliseconds as a whole number, "+
				"or an RFC 3339 string", r.time.text, v)
		}
		var err error
		at, err = hit.ParseTime(string(text))
		if err != nil {
			return 0, refusef(hit.BadTime, "time: %s is %s, which is not an RFC 3339 time", r.time.text, v)
		}
	}
	err := hit.CheckTime(at)
	if err != nil {
		return 0, refusef(hit.BadTime, "time: %s is %s: %v", r.time.text, v, err)
	}
	return at, nil
}

// fill sets what a counter's values give to its hit. counts is false if the counter is optional and a value
// is missing.
func (b *hitBuilder) fill(h *hit.Hit, c *plannedCounter) (counts bool, refusal *hit.Refusal) {
	if c.fixed == nil {
		name, refusal := b.join(c, &c.key)
		if name == nil {
			return false, refusal
		}
		err := checkLongName(name)
		if err != nil {
			return false, refusef(hit.BadKey, "key: %s: %v (line %d)", b.describeBadValue(c), err, c.line)
		}
		h.Counter = b.store(name)
	}
	if c.amount != nil {
		v := c.amount.value(b.captures)
		n, ok := v.parseInteger()
		switch {
		case c.optional && (v.isMissing() || ok && n == 0):
			return false, nil
		case !ok || n < 1 || n > hit.MaxN:
			return false, refusef(hit.BadCount, "n: %s is %s: must be a whole number from 1 to %d",
				c.amount.text, v, int64(hit.MaxN))
		}
		h.N = n
	}
	if c.unique.parts != nil {
		text, refusal := b.join(c, &c.unique)
		if text == nil {
			return false, refusal
		}
		if !utf8.Valid(text) {
			return false, refusef(hit.BadUnique, "unique: not valid UTF-8 (line %d)", c.line)
		}
		h.Unique = b.store(text)
	}
	return true, nil
}

// join joins text and values in scratch memory. It returns nil without a refusal if a value is missing and
// the counter is optional. A refusal does not contain a unique value.
func (b *hitBuilder) join(c *plannedCounter, t *template) ([]byte, *hit.Refusal) {
	text, ok := b.scratch[:0], true
	for i := range t.parts {
		part := &t.parts[i]
		v := part.value(b.captures)
		if !v.isMissing() {
			text, ok = v.appendTo(text)
			if ok {
				continue
			}
		}
		switch {
		case ok && c.optional:
			return nil, nil
		case ok:
			return nil, refusef(t.reason, "%s: %s is %s%s (line %d; optional: true would leave the counter out)",
				t.field, part.text, v, t.purpose, c.line)
		}
		shown := v.String()
		if t.secret {
			shown = kindNames[v.kind]
		}
		return nil, refusef(t.reason, "%s: %s is %s%s: must be text without halves of surrogate pairs, "+
			"a whole number, true or false (line %d)", t.field, part.text, shown, t.purpose, c.line)
	}
	b.scratch = text
	return text, nil
}

// store cuts a long text and stores it for as long as the hits are valid.
func (b *hitBuilder) store(text []byte) []byte {
	start := len(b.names)
	b.names = append(b.names, hit.Shorten(text)...)
	return b.names[start:len(b.names):len(b.names)]
}

// describeBadValue describes the first value that a name cannot have.
func (b *hitBuilder) describeBadValue(c *plannedCounter) string {
	for i := range c.key.parts {
		part := &c.key.parts[i]
		v := part.value(b.captures)
		text, _ := v.appendTo(nil)
		if checkLongName(text) != nil {
			return fmt.Sprintf("%s is %s", part.text, v)
		}
	}
	return "its name"
}

// checkLongName is hit.CheckName, but allows a name that is too long.
func checkLongName(name []byte) error {
	switch {
	case len(name) <= hit.MaxName:
		return hit.CheckName(name)
	case !utf8.Valid(name):
		return hit.ErrNameUTF8
	case bytes.ContainsFunc(name, unicode.IsControl):
		return hit.ErrNameControl
	}
	return nil
}
