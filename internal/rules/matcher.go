package rules

import (
	"errors"
	"slices"
	"strings"
)

// matcher finds the plan for the messages of a subject.
type matcher struct {
	rules    []*rule
	subjects map[string]*subjectPlan
	plans    map[string]*plan // by the rules' indices
	limit    int              // subjects to remember
	misses   int              // since the memory was full

	tokens       []string
	indices      []byte
	matching     []*rule
	texts        []byte
	unremembered subjectPlan // of a subject that is not remembered
}

type subjectPlan struct {
	plan     *plan // nil: no rule matches
	captures []value
}

// The bounds of a Decoder's memory.
const (
	maxSubjects = 4096
	maxPlans    = 1024
	// After missesPerReset misses per remembered subject, a full memory is emptied of disused ones.
	missesPerReset = 16
)

func newMatcher(rules []*rule) matcher {
	return matcher{
		rules: rules, subjects: make(map[string]*subjectPlan), plans: make(map[string]*plan), limit: maxSubjects,
	}
}

var noPlan = &subjectPlan{}

// match returns a subject's plan and captures. The result is valid until the next call.
func (m *matcher) match(subject string) *subjectPlan {
	if len(m.rules) == 0 {
		return noPlan
	}
	known := m.subjects[subject]
	if known != nil {
		return known
	}
	if len(m.subjects) < m.limit {
		out := new(subjectPlan)
		m.findPlan(subject, out, nil)
		m.subjects[subject] = out
		return out
	}
	m.misses++
	if m.misses == missesPerReset*m.limit {
		m.misses = 0
		clear(m.subjects)
	}
	// Remembering a subject that does not recur costs more than finding its rules: 2.3 µs against 0.4 µs.
	m.texts = m.findPlan(subject, &m.unremembered, m.texts[:0])
	return &m.unremembered
}

// findPlan fills in out. It appends the parts of the subject that the rules use to texts.
func (m *matcher) findPlan(subject string, out *subjectPlan, texts []byte) []byte {
	m.tokens = splitSubject(m.tokens, subject)
	m.indices, m.matching = m.indices[:0], m.matching[:0]
	for i, r := range m.rules {
		if r.filter.matches(m.tokens) {
			m.matching = append(m.matching, r)
			m.indices = append(m.indices, byte(i), byte(i>>8))
		}
	}
	out.plan, out.captures = nil, out.captures[:0]
	if len(m.matching) == 0 {
		return texts
	}
	p := m.plans[string(m.indices)]
	if p == nil {
		if len(m.plans) >= maxPlans {
			clear(m.plans)
			clear(m.subjects)
		}
		p = newPlan(m.matching)
		m.plans[string(m.indices)] = p
	}
	out.plan = p
	for _, c := range p.captures {
		part := subject
		if c.wildcard > 0 {
			part = c.filter.captureWildcard(c.wildcard, subject, m.tokens)
		}
		start := len(texts)
		texts = append(texts, part...)
		out.captures = append(out.captures, value{kindPlain, texts[start:len(texts):len(texts)]})
	}
	return texts
}

// filter is a subject with NATS's wildcards.
type filter struct {
	text   string
	tokens []string
}

// MaxSubject bounds the subject of a rule, in bytes.
const MaxSubject = 1024

var errSubject = errors.New("must be tokens with dots between them, such as orders.*.created or orders.>: " +
	"* stands for one token, and > at the end for all that follow")

func parseFilter(text string) (filter, error) {
	f := filter{text, strings.Split(text, ".")}
	for i, token := range f.tokens {
		wild := token == "*" || token == ">" && i == len(f.tokens)-1
		if token == "" || !wild && strings.ContainsAny(token, "*>") ||
			strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) || len(text) > MaxSubject {
			return filter{}, errSubject
		}
	}
	return f, nil
}

func (f filter) wildcards() (n int) {
	for _, token := range f.tokens {
		if token == "*" || token == ">" {
			n++
		}
	}
	return n
}

func (f filter) matches(subject []string) bool {
	for i, want := range f.tokens {
		switch {
		case i == len(subject):
			return false
		case want == ">":
			return true
		case want != "*" && want != subject[i]:
			return false
		}
	}
	return len(f.tokens) == len(subject)
}

// captureWildcard returns what a wildcard, counted from 1, matches in a subject that the filter matches.
func (f filter) captureWildcard(wildcard int, subject string, tokens []string) string {
	start := 0
	for i, want := range f.tokens {
		if want == "*" || want == ">" {
			wildcard--
		}
		switch {
		case wildcard > 0:
		case want == ">":
			return subject[start:]
		default:
			return tokens[i]
		}
		start += len(tokens[i]) + len(".")
	}
	return ""
}

func (f filter) overlaps(other filter) bool {
	for i := range min(len(f.tokens), len(other.tokens)) {
		a, b := f.tokens[i], other.tokens[i]
		switch {
		case a == ">" || b == ">":
			return true
		case a != b && a != "*" && b != "*":
			return false
		}
	}
	return len(f.tokens) == len(other.tokens)
}

func checkGlob(text string) error {
	_, err := matchGlob(text, "")
	if err != nil || text == "" || len(text) > 255 || strings.ContainsAny(text, ". \t\r\n>/\\,") {
		return errors.New("must be the name of a stream, or a glob such as ORDERS* or SHOP_?")
	}
	return nil
}

func splitSubject(buffer []string, subject string) []string {
	return slices.AppendSeq(buffer[:0], strings.SplitSeq(subject, "."))
}
