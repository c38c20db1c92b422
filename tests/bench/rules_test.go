package bench_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

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
func measureRules(t *testing.T, r *rig, o options) (out []row) {
	w := workload{counters: 100_000, zipf: 1.1}
	dir := t.TempDir()
	for _, size := range []int{1, batchSize} {
		form, events := ", one event a message", rulesSingle
		if size > 1 {
			form, events = fmt.Sprintf(", %d events a message", size), rulesBatched
		}
		var rows []row
		for i, ruling := range rulings {
			c := candidate{name: ruling.name + form, kind: product, batched: size > 1}
			if !o.wants("rules/" + c.name) {
				continue
			}
			env := []string{"INGEST_STREAMS=" + rulesStream}
			if ruling.file != "" {
				file := filepath.Join(dir, fmt.Sprintf("%d-%d.yml", size, i))
				require.NoError(t, os.WriteFile(file, []byte(ruling.rules()), 0o600))
				env = append(env, "INGEST_RULES="+file)
			}
			c.measure = func(t *testing.T, r *rig, s *stored) figures {
				ruled := *s
				ruled.hits *= ruling.hits
				f := r.tallyroll(t, []*stored{&ruled}, 1, env...)
				f.hits = s.hits // rates are of events
				return f
			}
			rows = append(rows, row{candidate: c})
		}
		var stream *stored
		for run := range o.runs {
			for i := range rows {
				row := &rows[(i+run)%len(rows)]
				row.figures = append(row.figures, each(t, "rules/"+row.candidate.name, run, func(t *testing.T) figures {
					if !stream.fresh() {
						stream = fillEvents(t, r.js, w, o.size(events), size)
					}
					return row.candidate.measure(t, r, stream)
				}))
			}
		}
		out = append(out, rows...)
	}
	return out
}

// fillEvents makes the stream of events anew. Each is an order of about 400 bytes that also names a key, for
// the worker without rules; its name and its items' are those of the workload's counters.
func fillEvents(t testing.TB, js jetstream.JetStream, w workload, events, size int) *stored {
	t.Helper()
	ctx := t.Context()
	if err := js.DeleteStream(ctx, rulesStream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: rulesStream, Subjects: []string{"events.>"}}); err != nil {
		t.Fatal(err)
	}
	s := &stored{stream: rulesStream, hits: events, size: size, began: time.Now(), truth: map[int]int64{}}
	draw := w.draw()
	for n := 0; n < events; s.last++ {
		var body []byte
		for range min(size, events-n) {
			i := draw()
			s.truth[i]++
			s.lastCounter = counterName(i)
			body = appendEvent(body, n, i, w.counters)
			n++
		}
		if _, err := js.PublishAsync("events.order", body, jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(5 * time.Minute):
		t.Fatal("published events are not acknowledged")
	}
	s.distinct = len(s.truth)
	return s
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
func TestEveryRulingCountsRight(t *testing.T) {
	r := newRig(t)
	o := options{runs: 1, scale: 1.0 / 1000, only: everything}
	for _, row := range measureRules(t, r, o) {
		if f := row.figures[0]; f.hits < rulesSingle/1000 || f.seconds <= 0 {
			t.Errorf("%s: %+v", row.candidate.name, f)
		}
	}
}
