package consume

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/rules"
	"tallyroll/internal/window"
)

// simRules are what a worker's rules can be; the first has no rules. Each counts an event in another way.
var simRules = []*rules.Set{
	nil,
	simSet("- key: e{id}.a\n    - {key: 'e{id}.b', n: v, unique: 'visitor {u}'}", ""),
	simSet("- key: e{id}.b\n    - key: e{id}.c\n    - key: e{id}.d", ""),
	simSet("- key: e{id}.a\n    - key: e{missing}.b", ""), // refuses every event
	simSet("- {key: 'e{id}.c', unique: 'visitor {u}'}", "\n  when: {v: 2}"),
}

func simSet(count, when string) *rules.Set {
	text := fmt.Sprintf("- stream: HITS\n  subject: hits.event.*%s\n  count:\n    %s\n", when, count)
	set, err := rules.Parse([]byte(text))
	if err != nil {
		panic(err)
	}
	return set
}

// simCounts is what simRules count of an event with this id and v: how many on which counter. refused says
// that they refuse it. Nothing here is the production code's. Hits on the counter of simCountsUnique have the
// event's unique value.
func simCounts(rules int, id string, v int64) (counts map[string]int64, refused bool) {
	name := func(letter string) string { return "e" + id + "." + letter }
	switch {
	case rules == 1:
		return map[string]int64{name("a"): 1, name("b"): v}, false
	case rules == 2:
		return map[string]int64{name("b"): 1, name("c"): 1, name("d"): 1}, false
	case rules == 3:
		return nil, true
	case v == 2:
		return map[string]int64{name("c"): 1}, false
	}
	return nil, false
}

// simCountsUnique reports whether simRules give hits on a counter a unique value.
func simCountsUnique(rules int, counter string) bool {
	return rules == 1 && strings.HasSuffix(counter, ".b") || rules == 4
}

// simWay is what a message counts by one version.
type simWay struct {
	hits    map[string]simHit // by counter
	refused bool              // all of its events
}

// newRulebook returns the rules of a process that starts now.
func (w *simWorld) newRulebook() *Rulebook {
	set := simRules[w.rules]
	if set == nil {
		return nil
	}
	b := &Rulebook{chosen: func(string) bool { return true }, metrics: simMetrics, log: w.log, sets: map[string]*rules.Set{}}
	b.replace(set, nil)
	return b
}

// editRules edits the file, which processes that start from now on read; the process of the event reads
// it at once, if it has one.
func (w *simWorld) editRules(e simEvent) {
	w.rules = e.rules()
	w.originCounts.Store(e.n%2 == 0)
	if p := w.slots[e.worker]; p != nil && p.rules != nil && w.rules > 0 {
		p.rules.replace(simRules[w.rules], nil)
	}
}

// publishEvents stores a message of 1 to 3 events, which count by the rules. Without rules an event is a hit
// that names no counter, or, with some forms, one that is refused.
func (w *simWorld) publishEvents(form int) {
	id, stored := len(w.messages), w.tick()
	m := w.newMessage(id, stored, fmt.Sprintf("hits.event.m%d", id))
	m.ways = make([]simWay, len(simSubjects)+len(simRules)-1)
	count := func(way int, counter string, n int64, value string) {
		hit := simHit{counter: counter, hash: window.HashCounter([]byte(counter)), at: stored / 1e6, n: n}
		hit.shard = w.layout.ShardOf(hit.hash)
		if m.ways[way].hits == nil {
			m.ways[way].hits = map[string]simHit{}
		}
		hit.n += m.ways[way].hits[counter].n
		hit = w.withCells(hit, stored/1e6)
		if value != "" {
			hit.uniques = w.registersOf(hit, value, stored/1e6)
		}
		m.ways[way].hits[counter] = hit
	}
	for k := range 1 + (form+id)%3 {
		event, v := fmt.Sprintf("%d-%d", id, k), int64(1+(id+k)%3)
		n := int64(1)
		if form%3 == 2 {
			n = -1
		}
		u := (id + 7*k) % simUniques
		m.items = append(m.items, fmt.Sprintf(`{"id":%q,"v":%d,"n":%d,"u":%d}`, event, v, n, u))
		for i, subjects := range simSubjects {
			if m.ways[i].refused = n < 0; n > 0 {
				count(i, newSubjects(subjects).counter(m.subject), n, "")
			}
		}
		for i := 1; i < len(simRules); i++ {
			counts, refused := simCounts(i, event, v)
			m.ways[len(simSubjects)+i-1].refused = refused
			for counter, n := range counts {
				value := ""
				if simCountsUnique(i, counter) {
					value = simUnique(u)
				}
				count(len(simSubjects)+i-1, counter, n, value)
			}
		}
	}
	if id%5 == 4 { // a copy: versions either count it, or skip it
		m.header = nats.Header{"Nats-Stream": {"ORIGIN"}, "Nats-Sequence": {"1"}}
		m.ways = append(m.ways, simWay{})
	}
	m.counters = countersOf(m.ways)
	m.data = []byte("[" + strings.Join(m.items, ",") + "]")
	w.messages = append(w.messages, m)
	w.stream.store(m)
}

// countersOf are those of all versions.
func countersOf(ways []simWay) []string {
	all := map[string]bool{}
	for _, way := range ways {
		for counter := range way.hits {
			all[counter] = true
		}
	}
	return sortedKeys(all)
}

// checkWays: a message of events is counted by one version, wholly and on every shard.
func (w *simWorld) checkWays(m *simMessage, now int64, all bool, asOf []int64) string {
	if m.ways == nil {
		return ""
	}
	var problems []string
	for i := range m.ways {
		way := (m.way + i) % len(m.ways)
		problem := w.checkWay(m, m.ways[way], now, all, asOf)
		if problem == "" {
			m.way = way
			return ""
		}
		problems = append(problems, problem)
	}
	return fmt.Sprintf("%s is counted by no single version (all %v, fate %d):\n    %s", m, all, m.fate, strings.Join(problems, "\n    "))
}

// checkWay says what is not as one version would have it.
func (w *simWorld) checkWay(m *simMessage, way simWay, now int64, all bool, asOf []int64) string {
	for _, counter := range m.counters {
		want, is := way.hits[counter]
		h := want
		for i := 0; !is && h.counter == ""; i++ {
			h = m.ways[i].hits[counter] // of another version: nothing of it may be counted
		}
		due := m.due(all, asOf[h.shard])
		for _, c := range h.cells {
			have := w.count(c)
			if !w.single[c.tier].Holds(h.hash, h.at, now) || have == want.n || have == 0 && !due {
				continue
			}
			return fmt.Sprintf("%s of shard %d has %d in field %s of %s, want %d", counter, h.shard, have, c.field, c.key, want.n)
		}
		if problem := w.checkUniques(m, want, is && due, now); problem != "" {
			return problem
		}
		for i := range m.ways {
			for _, r := range m.ways[i].hits[counter].uniques {
				if want.uniques == nil && w.holdsUnique(r.tier, h, now) && !w.foreignKeys[r.key] && w.isRaised(m, r) {
					return fmt.Sprintf("register %d of %s is raised, and this version gives %s no unique value", r.register.Index(), r.key, counter)
				}
			}
		}
	}
	w.stream.mu.Lock()
	defer w.stream.mu.Unlock()
	for _, item := range m.items {
		have := w.stream.bodies[item]
		switch {
		case have > 1, way.refused && have == 0 && m.due(all, 0):
			return fmt.Sprintf("the reject %s is stored %d times", item, have)
		case !way.refused && have == 1 && !w.forgotten:
			return fmt.Sprintf("%s is rejected, too", item)
		}
	}
	return ""
}
