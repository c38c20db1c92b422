package bench_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// ruling is a way of counting the same events.
type ruling struct {
	name string
	file string // of rules; empty for none: then the events' own key counts
	hits int    // of an event
}

const (
	rulesStream = "EVENTS"
	// Events of a run, one and 100 to a message.
	rulesSingle, rulesBatched = 600_000, 1_000_000
	eventItems                = 4
)

var rulings = []ruling{
	{"no rules, one counter an event", "", 1},
	{"one rule, one counter an event", "    - key: '{name}'\n", 1},
	{"one rule, four counters an event", "    - key: orders\n    - key: orders.{country}\n    - key: orders.{country}.{customer.plan}\n    - key: '{name}'\n", 4},
	{"one rule with each, four elements an event", "    - key: '{sku}'\n", eventItems},
}

// rules is the file's text.
func (r ruling) rules() string {
	each := ""
	if r.hits == eventItems && r.name == rulings[3].name {
		each = "  each: items\n"
	}
	return "- stream: " + rulesStream + "\n  subject: events.>\n" + each + "  count:\n" + r.file
}

// measureRules counts one stream of events without rules and by several files, in turns. The first row of
// each form is what the others are compared with: the same bytes.
func measureRules(t *testing.T, r *rig, o options) (out []*row) {
	dir := t.TempDir()
	for _, batched := range []bool{false, true} {
		size, events, form := 1, rulesSingle, ", one event a message"
		if batched {
			size, events, form = batchSize, rulesBatched, fmt.Sprintf(", %d events a message", batchSize)
		}
		var all []candidate
		for i, ruling := range rulings {
			env := []string{"INGEST_STREAMS=" + rulesStream}
			if ruling.file != "" {
				file := filepath.Join(dir, fmt.Sprintf("%d-%d.yml", size, i))
				require.NoError(t, os.WriteFile(file, []byte(ruling.rules()), 0o600))
				env = append(env, "INGEST_RULES="+file)
			}
			measure := func(t *testing.T, r *rig, s *stored) figures {
				ruled := *s
				ruled.hits *= ruling.hits
				f := r.tallyroll(t, []*stored{&ruled}, 1, env...)
				f.hits = s.hits // rates are of events
				return f
			}
			all = append(all, candidate{name: ruling.name + form, kind: product, batched: batched, measure: measure})
		}
		var stream *stored
		rows := rowsOf(o, "rules/", all)
		countInTurns(t, r, o, "rules/", rows, func(t testing.TB, _ candidate) *stored {
			if !stream.fresh() {
				stream = fillEvents(t, r.js, o.size(events), size)
			}
			return stream
		})
		out = append(out, rows...)
	}
	return out
}

// fillEvents makes the stream of events anew. Each is an order of about 400 bytes that also names a key, for
// the worker without rules; its name and its items' are those of the workload's counters.
func fillEvents(t testing.TB, js jetstream.JetStream, events, size int) *stored {
	t.Helper()
	w, n := workload{counters: 100_000, zipf: 1.1}, 0
	return store(t, js, rulesStream, "events", w, events, size, func(body []byte, counter int) (string, []byte) {
		n++
		return "events.order", appendEvent(body, n-1, counter, w.counters)
	})
}

func appendEvent(body []byte, n, counter, counters int) []byte {
	name := counterName(counter)
	body = fmt.Appendf(body, `{"key":%q,"id":"o-%08d","occurred_on":"2026-11-20","status":"paid","country":"c%d","name":%q,"customer":{"id":%d,"plan":"p%d","mail":"someone@example.com"},"quantity":2,"items":[`,
		name, n, n%30, name, n%5000, n%3)
	for k := range eventItems {
		if k > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"sku":%q,"price":%d,"currency":"EUR"}`, counterName((counter+k)%counters), 100*k+99)
	}
	return append(body, "]}\n"...)
}

// Each ruling must count right before its rate says anything.
func checkRules(t *testing.T, r *rig) {
	for _, row := range measureRules(t, r, options{runs: 1, scale: 1.0 / 1000, only: everything}) {
		if f := row.figures[0]; f.hits < rulesSingle/1000 || f.seconds <= 0 {
			t.Errorf("%s: %+v", row.candidate.name, f)
		}
	}
}
