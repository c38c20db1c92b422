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

	"github.com/stretchr/testify/require"

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

// dashboard is what clients ask for over and over. Its times run from the moment at which an answer was due to be asked for.
type dashboard struct {
	sample
	own bool // each client asks about counters of its own
}

func (d *dashboard) path() string { return "dashboard/" + d.name }

// measureDashboards lets clients ask one query process once per second, however long the answers take.
func measureDashboards(t *testing.T, r *rig, o options) []*dashboard {
	wanted := chosen(o, (*dashboard).path, &dashboard{sample: sample{name: "all show the same 20 counters"}},
		&dashboard{sample: sample{name: "each shows 20 counters of its own"}, own: true})
	if len(wanted) == 0 {
		return nil
	}
	clients := o.size(dashboardClients)
	q := stack.Query(t, r.redis, stack.NoWait, "TALLYROLL_NAMESPACE="+namespace, "LOG_LEVEL=warn")
	filled := -1
	inTurns(t, o, wanted, (*dashboard).path, func(t *testing.T, d *dashboard, run int) {
		if filled < run {
			// Anew each time: the shortest window must not have run empty.
			r.empty(t)
			r.fillTiers(t, mustTiers(t, window.DefaultTiers), clients*dashboardCounters, clients*dashboardCounters)
			q.WaitReady()
			filled = run
		}
		r.watch(t, q, d, clients, max(o.seconds(10), 2*dashboardPeriod))
		fmt.Printf("%s run %d: %.0f answers/s, p50 %s, p99 %s\n", d.path(), run+1, d.last("rate"), d.p(50), d.p(99))
	})
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
func (r *rig) watch(t *testing.T, q *stack.Service, d *dashboard, clients int, length time.Duration) {
	t.Helper()
	web := httpClient(t, clients)
	url := q.URL() + "/v1/total"
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
				err := askOnce(t.Context(), web, http.MethodPost, url, body)
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
	query, redis := cpuSince(t, q.PID()), cpuSince(t, r.redis.PID())
	all.Wait()
	seconds := time.Since(began).Seconds()
	d.add("rate", float64(answered)/seconds)
	d.add("query", query()/seconds)
	d.add("redis", redis()/seconds)
	d.add("refused", float64(refused))
}

// dashboardRows are the rows of the table.
func dashboardRows(all []*dashboard) (rows []string) {
	for _, d := range all {
		refused := 0.0
		for _, n := range d.rounds["refused"] {
			refused += n
		}
		rows = append(rows, cellsOf(d.name, spread(d.rounds["rate"]), d.p(50), d.p(99),
			short(d.median("query")), short(d.median("redis")), fmt.Sprint(refused)))
	}
	return rows
}

// Every dashboard is answered, and each client's is about counters of its own.
func checkDashboards(t *testing.T, r *rig) {
	o := options{runs: 1, scale: 3.0 / dashboardClients, only: everything}
	all := measureDashboards(t, r, o)
	tables := view{"Dashboards": dashboardRows(all)}.tables(t, r, o)
	require.Contains(t, tables, "\n3 clients each ask")
	require.Contains(t, tables, "| each shows 20 counters of its own | ")
	for _, d := range all {
		if len(d.took)+int(d.median("refused")) < 3 || len(d.took) == 0 {
			t.Errorf("%+v", d)
		}
	}
	q := stack.Query(t, r.redis, "TALLYROLL_NAMESPACE="+namespace)
	for client := range 3 {
		_, answer, err := stack.Do(http.MethodPost, q.URL()+"/v1/total", json.RawMessage(all[1].question(client)))
		if err != nil || strings.Count(string(answer), `"total"`) != dashboardCounters*5 ||
			strings.Count(string(answer), `"total":0,`) > dashboardCounters || // but for the minute, which may have passed
			!strings.Contains(string(answer), `"`+counterName(client*dashboardCounters)+`"`) {
			t.Errorf("client %d: %v %s", client, err, answer)
		}
	}
}
