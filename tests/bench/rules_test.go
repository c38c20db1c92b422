package bench_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// ruling is a way of counting the same events.
type ruling struct {
	name  string
	rules string // without their stream; empty for none: then the events' own key counts
	hits  int    // of an event
}

const (
	rulesStream = "EVENTS"
	// Events of a run, one and 100 to a message.
	rulesSingle, rulesBatched = 600_000, 1_000_000
	eventItems                = 4
)

var rulings = []ruling{
	{"no rules, one counter an event", "", 1},
	{"one rule, one counter an event", "count: [{key: '{name}'}]", 1},
	{"one rule, four counters an event",
		"count: [{key: orders}, {key: 'orders.{country}'}, {key: 'orders.{country}.{customer.plan}'}, {key: '{name}'}]", 4},
	{"one rule with each, four elements an event", "each: items, count: [{key: '{sku}'}]", eventItems},
}

// measureRules counts one stream of events without rules and by several files, in turns. The first row of
// each form is what the others are compared with: the same bytes.
func measureRules(t *testing.T, r *rig, o options) (out []*candidate) {
	dir := t.TempDir()
	for _, batched := range []bool{false, true} {
		size, events, form := 1, rulesSingle, ", one event a message"
		if batched {
			size, events, form = batchSize, rulesBatched, fmt.Sprintf(", %d events a message", batchSize)
		}
		var all []*candidate
		for i, ruling := range rulings {
			var env []string
			if ruling.rules != "" {
				file := filepath.Join(dir, fmt.Sprintf("%d-%d.yml", size, i))
				text := "- {stream: " + rulesStream + ", subject: events.>, " + ruling.rules + "}\n"
				require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
				env = append(env, "INGEST_RULES="+file)
			}
			c := &candidate{sample: sample{part: "rules", name: ruling.name + form}, batched: batched}
			c.measure = func(t *testing.T, r *rig, s *stored) figures {
				ruled := *s
				ruled.hits *= ruling.hits
				f := r.tallyroll(t, []*stored{&ruled}, rulesStream, 1, env...)
				return f.perEvent(float64(ruling.hits))
			}
			all = append(all, c)
			c.Base = &all[0].sample
		}
		var stream *stored
		all = chosen(o, all...)
		countInTurns(t, r, o, all, func(t testing.TB, _ *candidate) *stored {
			if !stream.fresh() {
				stream = r.fillEvents(t, o.size(events), size)
			}
			return stream
		})
		out = append(out, all...)
	}
	return out
}

// perEvent turns figures of hits into those of events of n hits each.
func (f figures) perEvent(hits float64) figures {
	for _, figure := range []string{"hits", "rate"} {
		f[figure] /= hits
	}
	for _, figure := range []string{"worker", "redis", "broker", "commands"} {
		f[figure] *= hits
	}
	return f
}

// fillEvents recreates the stream of events. Each is an order of about 400 bytes that also names a key, for
// the worker without rules; its name and its items' are those of the workload's counters.
func (r *rig) fillEvents(t testing.TB, events, size int) *stored {
	t.Helper()
	w, n := workload{counters: 100_000, zipf: 1.1}, 0
	return r.store(t, rulesStream, w, events, size, func(body []byte, counter int) (string, []byte) {
		n++
		return "events.order", appendEvent(body, n-1, counter, w.counters)
	})
}

func appendEvent(body []byte, n, counter, counters int) []byte {
	name := counterName(counter)
	body = fmt.Appendf(body, `{"key":%q,"id":"o-%08d","occurred_on":"2026-11-20","status":"paid","country":"c%d",`,
		name, n, n%30)
	body = fmt.Appendf(body, `"name":%q,"customer":{"id":%d,"plan":"p%d","mail":"someone@example.com"},`,
		name, n%5000, n%3)
	body = append(body, `"quantity":2,"items":[`...)
	for k := range eventItems {
		if k > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"sku":%q,"price":%d,"currency":"EUR"}`, counterName((counter+k)%counters), 100*k+99)
	}
	return append(body, "]}\n"...)
}

// Each ruling counts right.
func checkRules(t *testing.T, r *rig) {
	o := options{runs: 1, scale: 1.0 / 1000, only: regexp.MustCompile("no rules|100 events a message$")}
	for _, c := range measureRules(t, r, o) {
		if c.last("hits") < rulesSingle/1000 || c.last("rate") <= 0 {
			t.Errorf("%s: %+v", c.name, c.rounds)
		}
	}
}
