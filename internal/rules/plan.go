package rules

import (
	"fmt"

	"tallyroll/internal/hit"
)

// plan handles messages that the same rules match. It holds the current event, so it belongs to one Decoder.
type plan struct {
	format   Format
	event    *tree
	cloud    *cloudEvent // nil for other formats
	rules    []*plannedRule
	counters int // of all rules
	captures []capture
}

type plannedRule struct {
	line         int
	time         *reference // nil: the time stored
	timeOptional bool       // if it is missing, the time stored counts
	each         *node      // nil: the rule counts the event itself
	path         string     // of each
	element      *tree
	when         []plannedCondition
	count        []plannedCounter
}

type plannedCondition struct {
	reference reference
	want      value
}

type plannedCounter struct {
	line     int
	fixed    []byte // the name, if it is always the same
	key      template
	n        int64 // see counter
	amount   *reference
	unique   template // without parts: the hits have no unique value
	optional bool
}

// template is a counter's key or unique value.
type template struct {
	field   string // of the rules file
	purpose string // of its values, for a refusal
	reason  hit.Reason
	secret  bool
	parts   []reference
}

type reference struct {
	kind    kind
	text    string // of the source
	literal value  // of a constant
	capture int    // index in subjectPlan.captures
	node    *node
}

// capture is a part of the subject that a rule uses: a wildcard of a filter, or 0 for the whole.
type capture struct {
	filter   filter
	wildcard int
}

func newPlan(rules []*rule) *plan {
	p := &plan{format: rules[0].format, event: newTree()}
	if p.format == CloudEvents {
		p.cloud = newCloudEvent(p.event)
	}
	for _, r := range rules {
		p.rules = append(p.rules, p.planRule(r))
		p.counters += len(r.count)
	}
	p.event.finish()
	if p.cloud != nil {
		p.cloud.finish()
	}
	return p
}

// planRule resolves paths once, to nodes of the event's tree, or of each element's: an event is then read in
// one pass, however many rules name a field.
func (p *plan) planRule(r *rule) *plannedRule {
	out := &plannedRule{line: r.line}
	root := p.event
	if r.each != nil {
		out.each, out.path, out.element = p.event.add(r.each.names), r.each.text, newTree()
		root = out.element
	}
	refer := func(s source) reference { return p.addReference(r, s, root) }
	switch {
	case r.time != nil:
		at := refer(source{kind: field, text: r.time.text, path: *r.time})
		out.time = &at
	case p.cloud != nil:
		out.time, out.timeOptional = &reference{kind: field, text: "time", node: p.cloud.time}, true
	}
	for _, c := range r.when {
		out.when = append(out.when, plannedCondition{refer(c.source), c.want})
	}
	for _, c := range r.count {
		counter := plannedCounter{
			line: c.line, n: c.n, optional: c.optional,
			key:    template{field: "key", purpose: ", which a name cannot have", reason: hit.BadKey},
			unique: template{field: "unique", reason: hit.BadUnique, secret: true},
		}
		if c.amount != nil {
			amount := refer(source{kind: field, text: c.amount.text, path: *c.amount})
			counter.amount = &amount
		}
		for _, part := range c.key {
			counter.key.parts = append(counter.key.parts, refer(part))
		}
		for _, part := range c.unique {
			counter.unique.parts = append(counter.unique.parts, refer(part))
		}
		if len(c.key) == 1 && c.key[0].kind == constant {
			counter.fixed = []byte(c.key[0].text)
		}
		out.count = append(out.count, counter)
	}
	if out.element != nil {
		out.element.finish()
	}
	return out
}

func (p *plan) addReference(r *rule, s source, root *tree) reference {
	ref := reference{kind: s.kind, text: s.text}
	switch s.kind {
	case constant:
		ref.literal = value{kindPlain, []byte(s.text)}
	case subject, wildcard:
		ref.capture = len(p.captures)
		p.captures = append(p.captures, capture{r.filter, s.wildcard})
	case field:
		if s.path.event {
			root = p.event
		}
		ref.node = root.add(s.path.names)
	}
	return ref
}

// readJSON reads an event. Its values point to raw and to texts, to which it appends.
func (p *plan) readJSON(texts, raw []byte) ([]byte, *hit.Refusal) {
	if len(raw) == 0 || raw[0] != '{' {
		return texts, refusef(hit.BadJSON, "an event is a JSON object")
	}
	err := p.event.root.readAll(raw)
	switch {
	case err != nil:
		return texts, refusef(hit.BadJSON, "not a JSON object: %v", err)
	case p.cloud != nil:
		return p.cloud.finishJSON(texts)
	}
	return texts, nil
}

// value returns a value of the event or element that was read, or of the message's subject.
func (r *reference) value(captures []value) value {
	switch r.kind {
	case constant:
		return r.literal
	case field:
		return r.node.value()
	}
	return captures[r.capture]
}

// locate adds the rule and the element, or -1, to a refusal. That of too many hits is the whole message's.
func (r *plannedRule) locate(refusal *hit.Refusal, element int) *hit.Refusal {
	if refusal.Reason == hit.TooLarge {
		return refusal
	}
	where := fmt.Sprintf("rule on line %d: ", r.line)
	if element >= 0 {
		where += fmt.Sprintf("element %d of %s: ", element, r.path)
	}
	return &hit.Refusal{Reason: refusal.Reason, Detail: where + refusal.Detail}
}

func refusef(reason hit.Reason, format string, a ...any) *hit.Refusal {
	return &hit.Refusal{Reason: reason, Detail: fmt.Sprintf(format, a...)}
}
