package rules

import (
	"bytes"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/go-faster/jx"

	"tallyroll/internal/hit"
)

func (d *Decoder) countEvent() *hit.Refusal {
	for _, r := range d.matched.plan.rules {
		d.element = -1
		var refused *hit.Refusal
		if r.each == nil {
			refused = d.countOnce(r)
		} else {
			refused = d.countEach(r)
		}
		if refused != nil {
			return refused
		}
	}
	return nil
}

var errRefused = errors.New("refused")

func (d *Decoder) countEach(r *planned) *hit.Refusal {
	array := r.each.value()
	if array.kind != isArray {
		return d.refuse(r, hit.BadJSON, "%s is %s: each needs an array", r.path, array)
	}
	d.refused = nil
	d.array.ResetBytes(array.text)
	err := d.array.Arr(r.apply)
	if err != nil && d.refused == nil {
		return d.refuse(r, hit.BadJSON, "%s: %v", r.path, err)
	}
	return d.refused
}

func (d *Decoder) countElement(r *planned, j *jx.Decoder) error {
	d.element++
	err := r.element.root.read(j)
	if err != nil {
		return err
	}
	d.refused = d.countOnce(r)
	if d.refused != nil {
		return errRefused
	}
	return nil
}

// countOnce counts the event, or the element that was read, by one rule.
func (d *Decoder) countOnce(r *planned) *hit.Refusal {
	for i := range r.when {
		c := &r.when[i]
		if !d.value(&c.of).equals(c.want, d.scratch) {
			d.left = true
			return nil
		}
	}
	at, refused := d.at(r)
	if refused != nil {
		return refused
	}
	for i := range r.count {
		refused = d.countOn(r, &r.count[i], at)
		if refused != nil {
			return refused
		}
	}
	return nil
}

// at returns the time of the event or element, in Unix milliseconds.
func (d *Decoder) at(r *planned) (int64, *hit.Refusal) {
	if r.time == nil {
		return d.message.Stored, nil
	}
	v := d.value(r.time)
	if r.lax && v.missing() {
		return d.message.Stored, nil
	}
	at, ok := v.integer()
	if !ok {
		text, isTime := v.appendTo(d.scratch[:0])
		d.scratch = text
		if !isTime || v.kind == isInteger || v.kind == isBool {
			return 0, d.refuse(r, hit.BadTime, "time: %s is %s: allowed are Unix milliseconds as a whole number, or an RFC 3339 string", r.time.text, v)
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

func (d *Decoder) countOn(r *planned, c *plannedCounter, at int64) *hit.Refusal {
	h := hit.Hit{Counter: c.fixed, N: c.n, At: at}
	if c.fixed == nil {
		name, missing, refused := d.name(r, c)
		if missing || refused != nil {
			return refused
		}
		h.Counter = name
	}
	if c.amount != nil {
		v := d.value(c.amount)
		n, ok := v.integer()
		switch {
		case c.optional && (v.missing() || ok && n == 0):
			return nil
		case !ok || n < 1 || n > hit.MaxN:
			return d.refuse(r, hit.BadCount, "n: %s is %s: allowed is a whole number from 1 to %d", c.amount.text, v, int64(hit.MaxN))
		}
		h.N = n
	}
	if c.unique != nil {
		value, missing, refused := d.unique(r, c)
		if missing || refused != nil {
			return refused
		}
		h.Unique = value
	}
	if len(d.hits) >= d.most() {
		return d.errTooMany()
	}
	refused := d.limits.Judge(&h, d.message.Stored)
	if refused != nil {
		return d.refuse(r, refused.Reason, "%s", refused.Detail)
	}
	d.hits = append(d.hits, h)
	return nil
}

// name builds a counter's name. missing means that a value is missing and the counter is optional.
func (d *Decoder) name(r *planned, c *plannedCounter) (name []byte, missing bool, refused *hit.Refusal) {
	long, bad := d.assemble(c.parts)
	if bad != nil {
		v := d.value(bad)
		switch {
		case v.missing() && c.optional:
			return nil, true, nil
		case v.missing():
			return nil, false, d.refuse(r, hit.BadKey, "key: %s is %s, which a name cannot have (line %d; optional: true would leave the counter out)", bad.text, v, c.line)
		}
		return nil, false, d.refuse(r, hit.BadKey, "key: %s is %s, which a name cannot have: allowed are text without halves of surrogate pairs, whole numbers, true and false (line %d)", bad.text, v, c.line)
	}
	err := checkLong(long)
	if err != nil {
		return nil, false, d.refuse(r, hit.BadKey, "key: %s: %v (line %d)", d.culprit(c), err, c.line)
	}
	return d.keep(long), false, nil
}

// unique builds a hit's unique value. missing is as for name. No refusal contains the value.
func (d *Decoder) unique(r *planned, c *plannedCounter) (made []byte, missing bool, refused *hit.Refusal) {
	long, bad := d.assemble(c.unique)
	switch {
	case bad == nil && utf8.Valid(long):
		return d.keep(long), false, nil
	case bad == nil:
		return nil, false, d.refuse(r, hit.BadUnique, "unique: it is not valid UTF-8 (line %d)", c.line)
	}
	v := d.value(bad)
	switch {
	case v.missing() && c.optional:
		return nil, true, nil
	case v.missing():
		return nil, false, d.refuse(r, hit.BadUnique, "unique: %s is %s (line %d; optional: true would leave the counter out)", bad.text, v, c.line)
	}
	return nil, false, d.refuse(r, hit.BadUnique, "unique: %s is %s: allowed are text without halves of surrogate pairs, whole numbers, true and false (line %d)", bad.text, kindNames[v.kind], c.line)
}

// assemble joins text and values in scratch memory. bad is the first value that is missing or no part.
func (d *Decoder) assemble(parts []reference) (text []byte, bad *reference) {
	text = d.scratch[:0]
	for i := range parts {
		part := &parts[i]
		if part.kind == constant {
			text = append(text, part.literal...)
			continue
		}
		v := d.value(part)
		ok := !v.missing()
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

// keep cuts a long text and stores it for as long as the hits are valid.
func (d *Decoder) keep(text []byte) []byte {
	start := len(d.names)
	d.names = append(d.names, hit.Shorten(text)...)
	return d.names[start:len(d.names):len(d.names)]
}

// checkLong is hit.CheckName, but allows a name that is too long.
func checkLong(name []byte) error {
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

// culprit describes the first value that a name cannot have.
func (d *Decoder) culprit(c *plannedCounter) string {
	for i := range c.parts {
		part := &c.parts[i]
		if part.kind == constant {
			continue
		}
		v := d.value(part)
		text, _ := v.appendTo(nil)
		if checkLong(text) != nil {
			return fmt.Sprintf("%s is %s", part.text, v)
		}
	}
	return "its name"
}

func (d *Decoder) value(r *reference) value {
	if r.kind == field {
		return r.node.value()
	}
	return d.matched.captures[r.capture]
}

// refuse returns a refusal that names the rule and the element.
func (d *Decoder) refuse(r *planned, reason hit.Reason, format string, a ...any) *hit.Refusal {
	where := fmt.Sprintf("rule on line %d: ", r.line)
	if d.element >= 0 {
		where += fmt.Sprintf("element %d of %s: ", d.element, r.path)
	}
	return &hit.Refusal{Reason: reason, Detail: where + fmt.Sprintf(format, a...)}
}
