package bench_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

const (
	dashboardClients  = 200
	dashboardCounters = 20
	dashboardWindows  = `["1m","1h","24h","7d","30d"]`
	// dashboardPeriod is how often each client asks.
	dashboardPeriod = time.Second
)

// dashboard is what clients ask for over and over.
type dashboard struct {
	name string
	own  bool // each client asks about counters of its own
	runs []watched
}

// watched is one run of a dashboard's clients.
type watched struct {
	seconds            float64
	took               []time.Duration // from the moment at which an answer was due to be asked for
	refused            int
	queryCPU, redisCPU float64 // seconds
}

// measureDashboards lets clients ask one query process once per second, however long the answers take.
func measureDashboards(t *testing.T, r *rig, o options) (wanted []*dashboard) {
	for _, d := range []*dashboard{
		{name: "all show the same 20 counters"},
		{name: "each shows 20 counters of its own", own: true},
	} {
		if o.wants("dashboard/" + d.name) {
			wanted = append(wanted, d)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	clients := o.size(dashboardClients)
	q := stack.Query(t, r.redis, stack.NoWait, "TALLYROLL_NAMESPACE="+namespace, "LOG_LEVEL=warn")
	for run := range o.runs {
		// Anew each time: the shortest window must not have run empty.
		r.empty(t)
		r.fillTiers(t, mustTiers(t, window.DefaultTiers), clients*dashboardCounters, clients*dashboardCounters)
		q.WaitReady()
		for i := range wanted {
			d := wanted[(i+run)%len(wanted)]
			t.Run(fmt.Sprintf("dashboard/%s/run=%d", d.name, run), func(t *testing.T) {
				w := r.watch(t, q, d, clients, max(o.seconds(10), 2*dashboardPeriod))
				d.runs = append(d.runs, w)
				fmt.Printf("dashboard/%s run %d: %.0f answers/s, p50 %v, p99 %v\n", d.name, run+1,
					float64(len(w.took))/w.seconds, percentile(w.took, 50), percentile(w.took, 99))
			})
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	return wanted
}

// question is the body of what a client asks.
func (d *dashboard) question(client int) string {
	first := 0
	if d.own {
		first = client * dashboardCounters
	}
	var keys []string
	for i := range dashboardCounters {
		keys = append(keys, fmt.Sprintf("%q", counterName(first+i)))
	}
	return `{"keys":[` + strings.Join(keys, ",") + `],"windows":` + dashboardWindows + `}`
}

// watch lets the clients ask in turn, each once per period. An answer that comes late delays the client's next
// question, whose time runs from the moment at which it was due.
func (r *rig) watch(t *testing.T, q *stack.Service, d *dashboard, clients int, length time.Duration) (out watched) {
	t.Helper()
	web := httpClient(t, clients)
	url := q.URL() + "/v1/total"
	var mu sync.Mutex
	var all sync.WaitGroup
	// The first period connects, and is not measured.
	began := time.Now().Add(dashboardPeriod)
	for client := range clients {
		body := d.question(client)
		all.Go(func() {
			due := began.Add(dashboardPeriod * time.Duration(client) / time.Duration(clients))
			for due = due.Add(-dashboardPeriod); due.Before(began.Add(length)); due = due.Add(dashboardPeriod) {
				time.Sleep(time.Until(due))
				err := askOnce(t.Context(), web, http.MethodPost, url, body)
				took := time.Since(due)
				mu.Lock()
				switch {
				case due.Before(began):
				case errors.Is(err, errRefused):
					out.refused++
				case err != nil:
					t.Error(err)
				default:
					out.took = append(out.took, took)
				}
				mu.Unlock()
			}
		})
	}
	time.Sleep(time.Until(began))
	query, redis := cpuSeconds(t, q.PID()), r.redisSeconds(t)
	all.Wait()
	out.seconds = time.Since(began).Seconds()
	out.queryCPU, out.redisCPU = cpuSeconds(t, q.PID())-query, r.redisSeconds(t)-redis
	return out
}

// dashboardRows are the rows of the table.
func dashboardRows(all []*dashboard) (rows []string) {
	for _, d := range all {
		var rates, query, redis []float64
		var took []time.Duration
		refused := 0
		for _, w := range d.runs {
			rates = append(rates, float64(len(w.took))/w.seconds)
			query, redis = append(query, w.queryCPU/w.seconds), append(redis, w.redisCPU/w.seconds)
			took, refused = append(took, w.took...), refused+w.refused
		}
		rows = append(rows, cellsOf(d.name, spread(rates), percentile(took, 50).String(), percentile(took, 99).String(),
			short(median(query)), short(median(redis)), fmt.Sprint(refused)))
	}
	return rows
}

// Every dashboard is answered, and each client's is about counters of its own.
func TestDashboardsAreAnswered(t *testing.T) {
	r := newRig(t)
	o := options{runs: 1, scale: 3.0 / dashboardClients, only: everything}
	all := measureDashboards(t, r, o)
	if len(all) != 2 {
		t.Fatalf("%d dashboards", len(all))
	}
	if tables := (&report{options: o, rig: r, dashboards: all}).tables(t); !strings.Contains(tables, "\n3 clients each ask") || !strings.Contains(tables, "| "+all[1].name+" | ") {
		t.Errorf("the table is not written: %s", tables)
	}
	for _, d := range all {
		if w := d.runs[0]; len(w.took)+w.refused < 3 || len(w.took) == 0 || w.seconds <= 0 {
			t.Errorf("%s: %+v", d.name, w)
		}
	}
	q := stack.Query(t, r.redis, "TALLYROLL_NAMESPACE="+namespace)
	own := all[1]
	for client := range 3 {
		_, answer, err := stack.Do(http.MethodPost, q.URL()+"/v1/total", json.RawMessage(own.question(client)))
		if err != nil || strings.Count(string(answer), `"total"`) != dashboardCounters*5 ||
			strings.Count(string(answer), `"total":0,`) > dashboardCounters || // but for the minute, which may have passed
			!strings.Contains(string(answer), `"`+counterName(client*dashboardCounters)+`"`) {
			t.Errorf("client %d: %v %s", client, err, answer)
		}
	}
}
