package rules

// The bounds of a Decoder's memory.
const (
	maxSubjects = 4096
	maxPlans    = 1024
	// After forgetAfter misses per remembered subject, a full memory is emptied to remove disused subjects.
	forgetAfter = 16
)

// matcher finds the plan for the messages of a subject.
type matcher struct {
	rules    []*rule
	subjects map[string]*matched
	plans    map[string]*plan // by the rules' indices
	most     int              // subjects to remember
	missed   int              // since the memory was full
	prepare  func(*plan)      // called with each new plan

	tokens  []string
	indices []byte
	found   []*rule
	texts   []byte
	current matched // of a subject that is not remembered
}

type matched struct {
	plan     *plan // nil: no rule matches
	captures []value
}

func newMatcher(rules []*rule, prepare func(*plan)) matcher {
	return matcher{rules: rules, subjects: make(map[string]*matched), plans: make(map[string]*plan), most: maxSubjects, prepare: prepare}
}

var unmatched = &matched{}

// match returns a subject's plan and captures. The result is valid until the next call.
func (m *matcher) match(subject string) *matched {
	if len(m.rules) == 0 {
		return unmatched
	}
	known := m.subjects[subject]
	if known != nil {
		return known
	}
	if len(m.subjects) < m.most {
		out := new(matched)
		m.find(subject, out, nil)
		m.subjects[subject] = out
		return out
	}
	m.missed++
	if m.missed == forgetAfter*m.most {
		m.missed = 0
		clear(m.subjects)
	}
	// Remembering a subject that does not recur costs more than finding its rules: 2.3 µs against 0.4 µs.
	m.texts = m.find(subject, &m.current, m.texts[:0])
	return &m.current
}

// find fills in out. It appends the parts of the subject that the rules use to texts.
func (m *matcher) find(subject string, out *matched, texts []byte) []byte {
	m.tokens = tokens(m.tokens, subject)
	m.indices, m.found = m.indices[:0], m.found[:0]
	for i, r := range m.rules {
		if r.filter.matches(m.tokens) {
			m.found = append(m.found, r)
			m.indices = append(m.indices, byte(i), byte(i>>8))
		}
	}
	out.plan, out.captures = nil, out.captures[:0]
	if len(m.found) == 0 {
		return texts
	}
	p := m.plans[string(m.indices)]
	if p == nil {
		if len(m.plans) >= maxPlans {
			clear(m.plans)
			clear(m.subjects)
		}
		p = newPlan(m.found)
		m.prepare(p)
		m.plans[string(m.indices)] = p
	}
	out.plan = p
	for _, c := range p.captures {
		part := subject
		if c.wildcard > 0 {
			part = c.filter.matched(c.wildcard, subject, m.tokens)
		}
		start := len(texts)
		texts = append(texts, part...)
		out.captures = append(out.captures, value{isPlain, texts[start:len(texts):len(texts)]})
	}
	return texts
}
