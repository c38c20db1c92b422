package rules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/go-faster/jx"

	"tallyroll/internal/hit"
)

func (d *Decoder) countEvent() *hit.Refusal {
	for _, r := range d.current.plan.rules {
		d.element = -1
		var refusal *hit.Refusal
		if r.each == nil {
			refusal = d.countOnce(r)
		} else {
			refusal = d.countEach(r)
		}
		if refusal != nil {
			return refusal
		}
	}
	return nil
}

var errRefused = errors.New("refused")

func (d *Decoder) countEach(r *plannedRule) *hit.Refusal {
	array := r.each.value()
	if array.kind != kindArray {
		return d.refuse(r, hit.BadJSON, "%s is %s: each needs an array", r.path, array)
	}
	d.elementRefusal = nil
	d.array.ResetBytes(array.text)
	err := d.array.Arr(r.apply)
	if err != nil && d.elementRefusal == nil {
		return d.refuse(r, hit.BadJSON, "%s: %v", r.path, err)
	}
	return d.elementRefusal
}

func (d *Decoder) countElement(r *plannedRule, j *jx.Decoder) error {
	d.element++
	err := r.element.root.read(j)
	if err != nil {
		return err
	}
	d.elementRefusal = d.countOnce(r)
	if d.elementRefusal != nil {
		return errRefused
	}
	return nil
}

// countOnce counts the event, or the element that was read, by one rule.
func (d *Decoder) countOnce(r *plannedRule) *hit.Refusal {
	for i := range r.when {
		c := &r.when[i]
		if !d.lookUp(&c.reference).equals(c.want, d.scratch) {
			d.skipped = true
			return nil
		}
	}
	at, refusal := d.readTime(r)
	if refusal != nil {
		return refusal
	}
	for i := range r.count {
		refusal = d.countCounter(r, &r.count[i], at)
		if refusal != nil {
			return refusal
		}
	}
	return nil
}

// readTime returns the time of the event or element, in Unix milliseconds.
func (d *Decoder) readTime(r *plannedRule) (int64, *hit.Refusal) {
	if r.time == nil {
		return d.message.Stored, nil
	}
	v := d.lookUp(r.time)
	if r.timeOptional && v.isMissing() {
		return d.message.Stored, nil
	}
	at, ok := v.parseInteger()
	if !ok {
		text, isTime := v.appendTo(d.scratch[:0])
		d.scratch = text
		if !isTime || v.kind == kindInteger || v.kind == kindBool {
			return 0, d.refuse(r, hit.BadTime, "time: %s is %s: must be Unix milliseconds as a whole number, or an RFC 3339 string", r.time.text, v)
		}
		var err error
		at, err = hit.ParseTime(string(text))
		if err != nil {
			return 0, d.refuse(r, hit.BadTime, "time: %s is %s, which is not an RFC 3339 time", r.time.text, v)
		}
	}
	err := hit.CheckTime(at)
	if err != nil {
		return 0, d.refuse(r, hit.BadTime, "time: %s is %s: %v", r.time.text, v, err)
	}
	return at, nil
}

func (d *Decoder) countCounter(r *plannedRule, c *plannedCounter, at int64) *hit.Refusal {
	h := hit.Hit{Counter: c.fixed, N: cmp.Or(c.n, d.increment, 1), At: at}
	if c.fixed == nil {
		name, missing, refusal := d.buildName(r, c)
		if missing || refusal != nil {
			return refusal
		}
		h.Counter = name
	}
	if c.amount != nil {
		v := d.lookUp(c.amount)
		n, ok := v.parseInteger()
		switch {
		case c.optional && (v.isMissing() || ok && n == 0):
			return nil
		case !ok || n < 1 || n > hit.MaxN:
			return d.refuse(r, hit.BadCount, "n: %s is %s: must be a whole number from 1 to %d", c.amount.text, v, int64(hit.MaxN))
		}
		h.N = n
	}
	if c.unique != nil {
		value, missing, refusal := d.buildUnique(r, c)
		if missing || refusal != nil {
			return refusal
		}
		h.Unique = value
	}
	if len(d.hits) >= d.maxHits() {
		return d.newTooManyRefusal()
	}
	refusal := d.limits.Judge(&h, d.message.Stored)
	if refusal != nil {
		return d.refuse(r, refusal.Reason, "%s", refusal.Detail)
	}
	d.hits = append(d.hits, h)
	return nil
}

// buildName builds a counter's name. missing means that a value is missing and the counter is optional.
func (d *Decoder) buildName(r *plannedRule, c *plannedCounter) (name []byte, missing bool, refusal *hit.Refusal) {
	long, bad := d.joinParts(c.parts)
	if bad != nil {
		v := d.lookUp(bad)
		switch {
		case v.isMissing() && c.optional:
			return nil, true, nil
		case v.isMissing():
			return nil, false, d.refuse(r, hit.BadKey, "key: %s is %s, which a name cannot have (line %d; optional: true would leave the counter out)", bad.text, v, c.line)
		}
		return nil, false, d.refuse(r, hit.BadKey, "key: %s is %s, which a name cannot have: must be text without halves of surrogate pairs, a whole number, true or false (line %d)", bad.text, v, c.line)
	}
	err := checkLongName(long)
	if err != nil {
		return nil, false, d.refuse(r, hit.BadKey, "key: %s: %v (line %d)", d.describeBadValue(c), err, c.line)
	}
	return d.storeText(long), false, nil
}

// buildUnique builds a hit's unique value. missing is as for name. No refusal contains the value.
func (d *Decoder) buildUnique(r *plannedRule, c *plannedCounter) (value []byte, missing bool, refusal *hit.Refusal) {
	long, bad := d.joinParts(c.unique)
	switch {
	case bad == nil && utf8.Valid(long):
		return d.storeText(long), false, nil
	case bad == nil:
		return nil, false, d.refuse(r, hit.BadUnique, "unique: not valid UTF-8 (line %d)", c.line)
	}
	v := d.lookUp(bad)
	switch {
	case v.isMissing() && c.optional:
		return nil, true, nil
	case v.isMissing():
		return nil, false, d.refuse(r, hit.BadUnique, "unique: %s is %s (line %d; optional: true would leave the counter out)", bad.text, v, c.line)
	}
	return nil, false, d.refuse(r, hit.BadUnique, "unique: %s is %s: must be text without halves of surrogate pairs, a whole number, true or false (line %d)", bad.text, kindNames[v.kind], c.line)
}

// joinParts joins text and values in scratch memory. bad is the first value that is missing or no part.
func (d *Decoder) joinParts(parts []reference) (text []byte, bad *reference) {
	text = d.scratch[:0]
	for i := range parts {
		part := &parts[i]
		if part.kind == constant {
			text = append(text, part.literal...)
			continue
		}
		v := d.lookUp(part)
		ok := !v.isMissing()
		if ok {
			text, ok = v.appendTo(text)
		}
		if !ok {
			return nil, part
		}
	}
	d.scratch = text
	return text, nil
}

// storeText cuts a long text and stores it for as long as the hits are valid.
func (d *Decoder) storeText(text []byte) []byte {
	start := len(d.names)
	d.names = append(d.names, hit.Shorten(text)...)
	return d.names[start:len(d.names):len(d.names)]
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

// describeBadValue describes the first value that a name cannot have.
func (d *Decoder) describeBadValue(c *plannedCounter) string {
	for i := range c.parts {
		part := &c.parts[i]
		if part.kind == constant {
			continue
		}
		v := d.lookUp(part)
		text, _ := v.appendTo(nil)
		if checkLongName(text) != nil {
			return fmt.Sprintf("%s is %s", part.text, v)
		}
	}
	return "its name"
}

func (d *Decoder) lookUp(r *reference) value {
	if r.kind == field {
		return r.node.value()
	}
	return d.current.captures[r.capture]
}

// refuse returns a refusal that names the rule and the element.
func (d *Decoder) refuse(r *plannedRule, reason hit.Reason, format string, a ...any) *hit.Refusal {
	where := fmt.Sprintf("rule on line %d: ", r.line)
	if d.element >= 0 {
		where += fmt.Sprintf("element %d of %s: ", d.element, r.path)
	}
	return &hit.Refusal{Reason: reason, Detail: where + fmt.Sprintf(format, a...)}
}
