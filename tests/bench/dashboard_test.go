package bench_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

const (
	dashboardClients  = 200
	dashboardCounters = 20
	// dashboardPeriod is how often each client asks.
	dashboardPeriod = time.Second
)

var dashboardWindows = []string{"1m", "1h", "24h", "7d", "30d"}

// dashboard is what clients ask for over and over. Its times run from the moment at which a question was due.
type dashboard struct {
	sample
	own bool // each client asks about counters of its own
}

// measureDashboards lets clients ask one query process once per second, however long the answers take.
func measureDashboards(t *testing.T, r *rig, o options) []*dashboard {
	wanted := chosen(o, &dashboard{sample: sample{part: "dashboard", name: "all show the same 20 counters"}},
		&dashboard{sample: sample{part: "dashboard", name: "each shows 20 counters of its own"}, own: true})
	if len(wanted) == 0 {
		return nil
	}
	clients := o.size(dashboardClients)
	q := r.startQuery(t, stack.NoWait)
	filled := -1
	inTurns(t, o, wanted, func(t *testing.T, d *dashboard, run int) {
		if filled < run {
			// Again each time: the shortest window must not have run empty.
			r.fillTiers(t, window.DefaultTiers, clients*dashboardCounters, clients*dashboardCounters)
			q.WaitReady()
			filled = run
		}
		r.watch(t, q, d, clients, max(o.seconds(10), 2*dashboardPeriod))
	})
	return wanted
}

// question is the body of what a client asks.
func (d *dashboard) question(client int) string {
	first := 0
	if d.own {
		first = client * dashboardCounters
	}
	return totalsBody(first, dashboardCounters, dashboardWindows...)
}

// watch lets the clients ask in turn, each once per period. An answer that comes late delays the client's
// next question, whose time runs from the moment at which it was due.
func (r *rig) watch(t *testing.T, q *stack.Service, d *dashboard, clients int, length time.Duration) {
	t.Helper()
	web := httpClient(t, clients)
	var mu sync.Mutex
	var all sync.WaitGroup
	answered, refused := 0, 0
	// The first period connects, and is not measured.
	began := time.Now().Add(dashboardPeriod)
	for client := range clients {
		body := d.question(client)
		all.Go(func() {
			due := began.Add(dashboardPeriod * time.Duration(client) / time.Duration(clients))
			for due = due.Add(-dashboardPeriod); due.Before(began.Add(length)); due = due.Add(dashboardPeriod) {
				time.Sleep(time.Until(due))
				err := postOnce(web, q.URL()+"/v1/total", jsonKind, body, io.Discard)
				took := time.Since(due)
				mu.Lock()
				switch {
				case due.Before(began):
				case errors.Is(err, errRefused):
					refused++
				case err != nil:
					t.Error(err)
				default:
					answered++
					d.took = append(d.took, took)
				}
				mu.Unlock()
			}
		})
	}
	time.Sleep(time.Until(began))
	query, redis := cpuSince(t, q.PID()), r.redisCPU(t).start()
	all.Wait()
	seconds := time.Since(began).Seconds()
	d.add("rate", float64(answered)/seconds)
	d.add("query", query()/seconds)
	d.add("redis", redis()/seconds)
	d.add("refused", float64(refused))
}

// Every dashboard is answered, and each client's is about counters of its own.
func checkDashboards(t *testing.T, r *rig) {
	o := options{runs: 1, scale: 3.0 / dashboardClients, only: everything}
	all := measureDashboards(t, r, o)
	tables := view{"Dashboards": all}.tables(t, o)
	require.Contains(t, tables, "\n3 clients each ask")
	require.Contains(t, tables, "| each shows 20 counters of its own | ")
	for _, d := range all {
		if len(d.took)+int(d.last("refused")) < 3 || len(d.took) == 0 {
			t.Errorf("%+v", d)
		}
	}
	q := r.startQuery(t)
	for client := range 3 {
		_, answer, err := stack.Do(http.MethodPost, q.URL()+"/v1/total", json.RawMessage(all[1].question(client)))
		if err != nil || strings.Count(string(answer), `"total"`) != dashboardCounters*5 ||
			strings.Count(string(answer), `"total":0,`) > dashboardCounters || // except for the minute, which may have passed
			!strings.Contains(string(answer), `"`+counterName(client*dashboardCounters)+`"`) {
			t.Errorf("client %d: %v %s", client, err, answer)
		}
	}
}
