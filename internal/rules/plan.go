package rules

import "github.com/go-faster/jx"

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
	apply        func(j *jx.Decoder) error // to an element
}

type plannedCondition struct {
	reference reference
	want      value
}

type plannedCounter struct {
	line     int
	fixed    []byte // the name, if it is always the same
	parts    []reference
	n        int64 // see counter
	amount   *reference
	unique   []reference
	optional bool
}

type reference struct {
	kind    kind
	text    string // of the source
	literal []byte
	capture int // index in subjectPlan.captures
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
		p.cloud.finish(p.event)
	}
	return p
}

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
		counter := plannedCounter{line: c.line, n: c.n, optional: c.optional}
		if c.amount != nil {
			amount := refer(source{kind: field, text: c.amount.text, path: *c.amount})
			counter.amount = &amount
		}
		for _, part := range c.key {
			counter.parts = append(counter.parts, refer(part))
		}
		for _, part := range c.unique {
			counter.unique = append(counter.unique, refer(part))
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
		ref.literal = []byte(s.text)
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
