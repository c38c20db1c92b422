package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"tallyroll/tests/stack"
)

// lastingHour is how long a trouble lasts for the alerts, in seconds.
const lastingHour = 3600

// One thing at a time happens to a fleet of real programs. promtool evaluates deploy/prometheus/alerts.yml on
// what they show, as if it went on for an hour. A real Alertmanager with the routes and the inhibit_rules of
// deploy/alertmanager.yml gets what fires. Each cause rings once, by its own name.
func TestEachCauseHasOnePage(t *testing.T) {
	t.Parallel()
	needPrometheus(t)
	am := startAlertmanager(t)
	for name, c := range map[string]struct {
		breaks func(*watched)
		until  func(*watched) bool // what the fleet shows then
		pages  []string            // of critical alerts
		mails  []string
	}{
		"a worker is dead": {
			breaks: func(w *watched) { w.programs["ingest-1"].Kill() },
			until:  func(w *watched) bool { return w.last("up", "ingest-1") == 0 && w.isWell() },
		},
		"both workers are dead": {
			breaks: func(w *watched) { w.programs["ingest-1"].Kill(); w.programs["ingest-2"].Kill() },
			until: func(w *watched) bool {
				return w.last("tallyroll_stream_owned", "query") == 0 && w.last("tallyroll_as_of_age_seconds", "query") > stuck && w.watches()
			},
			pages: []string{"TallyrollNoWorker"},
		},
		"Redis hangs": {
			breaks: func(w *watched) { w.redis.Pause() },
			until: func(w *watched) bool {
				return w.last("tallyroll_query_redis_up", "query") == 0 && w.last("tallyroll_as_of_age_seconds", "query") > stuck && !w.watches()
			},
			pages: []string{"TallyrollRedisAway"},
		},
		"NATS hangs": {
			breaks: func(w *watched) { w.nats.Pause() },
			until: func(w *watched) bool {
				return w.last("tallyroll_nats_up", "query", "collect", "ingest-1", "ingest-2") == 0
			},
			pages: []string{"TallyrollNATSAway"},
		},
		"Redis is full": {
			breaks: func(w *watched) { w.fillRedis() },
			until:  func(w *watched) bool { return w.last("tallyroll_as_of_age_seconds", "query") > stuck && w.watches() },
			pages:  []string{"TallyrollAnswersOld"},
			mails:  []string{"TallyrollRedisMemory"},
		},
		"NATS is full": {
			breaks: func(w *watched) { w.fillNATS() },
			until:  func(w *watched) bool { return w.refused > 15 },
			pages:  []string{"TallyrollCollectRefuses"},
			mails:  []string{"TallyrollNATSDisk"},
		},
		"a rolling restart": {
			breaks: func(w *watched) {
				for _, name := range []string{"ingest-1", "ingest-2", "query", "collect", "watch"} {
					w.programs[name].Stop()
					w.scrape()
					w.programs[name].Start()
					w.scrape()
				}
			},
			until: (*watched).isWell,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startWatched(t)
			w.scrapeUntil("a fleet that counts", w.isWell)
			w.refused = 0
			c.breaks(w)
			w.scrapeUntil(name, func() bool { return c.until(w) })
			fired := w.fired()
			pages, mails := am.notified(t, name, fired)
			t.Logf("%v fire", names(fired))
			require.Equal(t, fmt.Sprint("pages ", c.pages, ", mails ", c.mails), fmt.Sprint("pages ", pages, ", mails ", mails))
		})
	}
}

// watched is a fleet of real programs, and what Prometheus would have scraped of it, once per second.
type watched struct {
	t        *testing.T
	nats     *stack.NATSProc
	monitor  string
	redis    *stack.RedisServer
	programs map[string]*stack.Service
	rounds   int
	seconds  []int // of each round, since the first
	began    time.Time
	series   map[string]map[int]float64 // by series with labels, and round
	refused  int                        // hits that collect did not accept
	needed   *regexp.Regexp             // the metrics that alerts ask for
}

func startWatched(t *testing.T) *watched {
	t.Helper()
	w := &watched{t: t, monitor: fmt.Sprintf("127.0.0.1:%d", stack.FreePort(t)), series: make(map[string]map[int]float64)}
	config := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "http: %q\njetstream { store_dir: %q, max_file_store: 4MB }\n", w.monitor, t.TempDir()), 0o600))
	w.nats, w.redis = stack.NATSProcess(t, "--config", config), stack.Redis(t)
	w.programs = map[string]*stack.Service{
		"ingest-1": stack.Ingest(t, w.nats, w.redis), "ingest-2": stack.Ingest(t, w.nats, w.redis), "collect": stack.Collect(t, w.nats, "COLLECT_TIMEOUT=1s"),
		"query": stack.Query(t, w.redis, "NATS_URL="+w.nats.URL(), "QUERY_TIMEOUT=1s"),
	}
	// The first rule is about a window that is young, which fires no alert.
	rules := filepath.Join(t.TempDir(), "watch.yml")
	require.NoError(t, os.WriteFile(rules, []byte("targets: {bus: {nats: alerts}}\nrules:\n- {name: day, key: a, window: 24h, below: 1, to: [bus]}\n- {name: few, key: b, window: 1s, below: 1, to: [bus]}\n"), 0o600))
	w.programs["watch"] = stack.Watch(t, w.nats, w.redis, rules)
	asked := make(map[string]bool)
	for _, a := range alerts(t) {
		for _, name := range anyMetric.FindAllString(a.Expr, -1) {
			asked[name] = true
		}
	}
	w.needed = regexp.MustCompile(`(?m)^(` + strings.Join(slices.Sorted(maps.Keys(asked)), "|") + `)(?:\{(.*)\})? (\S+)$`)
	w.began = time.Now()
	return w
}

// scrapeUntil scrapes once per second until the condition has held in five rounds in a row.
func (w *watched) scrapeUntil(what string, cond func() bool) {
	w.t.Helper()
	held := 0
	stack.Eventually(w.t, what, func() (bool, string) {
		w.scrape()
		if held++; !cond() {
			held = 0
		}
		return held == steady, fmt.Sprint(w.latest())
	})
}

// The future is read from that number of rounds. An age above so many seconds grows on.
const (
	steady = 5
	stuck  = 10
)

// scrape adds a round, at least a second after the previous one, and sends a hit.
func (w *watched) scrape() {
	w.t.Helper()
	if w.rounds > 0 {
		time.Sleep(time.Until(w.began.Add(time.Duration(w.seconds[w.rounds-1]+1) * time.Second)))
	}
	w.seconds = append(w.seconds, int(time.Since(w.began)/time.Second))
	var mu sync.Mutex
	var scrapes sync.WaitGroup
	scrapes.Go(func() {
		status, _, err := stack.Do(http.MethodPost, w.programs["collect"].URL()+"/v1/hits", map[string]any{"key": "a"})
		if err != nil || status != http.StatusAccepted {
			w.refused++
		}
	})
	for name, p := range w.programs {
		scrapes.Go(func() {
			body, err := get(p.URL() + "/metrics")
			mu.Lock()
			defer mu.Unlock()
			w.addProgram(name, body, err)
		})
	}
	scrapes.Wait()
	w.scrapeServers()
	w.rounds++
}

// addProgram adds what a program shows of the metrics that alerts ask for.
func (w *watched) addProgram(name, body string, err error) {
	job, _, _ := strings.Cut(name, "-")
	own := fmt.Sprintf(`job="tallyroll-%s", instance=%q`, job, name)
	if err != nil {
		w.add("up{"+own+"}", 0)
		return
	}
	w.add("up{"+own+"}", 1)
	for _, m := range w.needed.FindAllStringSubmatch(body, -1) {
		value, _ := strconv.ParseFloat(m[3], 64)
		if strings.HasSuffix(m[1], "_timestamp_seconds") { // the clock of promtool begins at 0
			value -= float64(w.began.Unix())
		}
		w.add(m[1]+"{"+strings.TrimPrefix(m[2]+", "+own, ", ")+"}", value)
	}
}

// scraper waits as long as Prometheus does.
var scraper = &http.Client{Timeout: 10 * time.Second}

func get(address string) (string, error) {
	resp, err := scraper.Get(address)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// scrapeServers adds what the exporters of deploy/compose.yml show of Redis and NATS. A server that hangs
// shows nothing.
func (w *watched) scrapeServers() {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
	defer cancel()
	if text, err := w.redis.Client().Info(ctx, "memory").Result(); err == nil {
		for _, m := range regexp.MustCompile(`(?m)^(used_memory|maxmemory):(\d+)`).FindAllStringSubmatch(text, -1) {
			value, _ := strconv.ParseFloat(m[2], 64)
			w.add(map[string]string{"used_memory": "redis_memory_used_bytes", "maxmemory": "redis_memory_max_bytes"}[m[1]]+`{job="redis"}`, value)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.monitor+"/jsz", nil)
	require.NoError(w.t, err)
	if resp, err := scraper.Do(req); err == nil {
		defer resp.Body.Close()
		var jsz struct {
			Config struct {
				Max float64 `json:"max_storage"`
			}
			Storage float64
		}
		require.NoError(w.t, json.NewDecoder(resp.Body).Decode(&jsz))
		w.add(`jetstream_server_max_storage{job="nats", server_name="a"}`, jsz.Config.Max)
		w.add(`jetstream_server_total_message_bytes{job="nats", server_name="a"}`, jsz.Storage)
	}
}

func (w *watched) add(series string, value float64) {
	if w.series[series] == nil {
		w.series[series] = make(map[int]float64)
	}
	w.series[series][w.rounds] = value
}

// latest is what the last round has of a metric, or of all, by series.
func (w *watched) latest() map[string]float64 {
	out := make(map[string]float64)
	for name, values := range w.series {
		if value, ok := values[w.rounds-1]; ok {
			out[name] = value
		}
	}
	return out
}

// last is the greatest value of a metric in the last round, or -1.
func (w *watched) last(metric string, instances ...string) float64 {
	out := -1.0
	for name, value := range w.latest() {
		for _, instance := range instances {
			if strings.HasPrefix(name, metric+"{") && strings.Contains(name, fmt.Sprintf("instance=%q", instance)) {
				out = max(out, value)
			}
		}
	}
	return out
}

// isWell reports whether hits are counted as they come, so that no age grows from round to round.
func (w *watched) isWell() bool {
	age := w.last("tallyroll_as_of_age_seconds", "query")
	return w.last("tallyroll_stream_owned", "query") == 1 && age >= 0 && age < 3 && w.watches()
}

// watches reports whether watch has evaluated its rules just now.
func (w *watched) watches() bool {
	return w.last("tallyroll_watch_last_evaluation_timestamp_seconds", "watch") > time.Since(w.began).Seconds()-3
}

func (w *watched) fillRedis() {
	require.NoError(w.t, w.redis.Client().ConfigSet(w.t.Context(), "maxmemory", "500000").Err())
}

// fillNATS stores messages until the server refuses the smallest.
func (w *watched) fillNATS() {
	js := w.nats.JetStream()
	_, err := js.CreateStream(w.t.Context(), jetstream.StreamConfig{Name: "FILL", Subjects: []string{"fill"}})
	require.NoError(w.t, err)
	for _, size := range []int{64 << 10, 1 << 10, 1} {
		for err = nil; err == nil; {
			_, err = js.Publish(w.t.Context(), "fill", make([]byte, size))
		}
	}
}

// anyKind is the end of a metric's name, which says what goes on.
var anyKind = regexp.MustCompile(`_(total|count|timestamp_seconds|seconds)\{`)

// values are those of a series per second, as promtool reads them: the rounds, and then an hour in which
// counters and clocks go on as in the last rounds, an age that is stuck grows, and all else stays.
func (w *watched) values(name string, rounds map[int]float64) string {
	var out strings.Builder
	for round := range w.rounds {
		until := w.seconds[w.rounds-1] + 1
		if round+1 < w.rounds {
			until = w.seconds[round+1]
		}
		value, ok := rounds[round]
		_, before := rounds[round-1]
		for second := w.seconds[round]; second < until; second++ {
			switch {
			case ok:
				fmt.Fprintf(&out, "%v ", value)
			case before && second == w.seconds[round]:
				out.WriteString("stale ")
			default:
				out.WriteString("_ ")
			}
		}
	}
	end, ok := rounds[w.rounds-1]
	if !ok {
		fmt.Fprintf(&out, "_x%d", lastingHour)
		return out.String()
	}
	slope, first := 0.0, end
	if value, ok := rounds[w.rounds-steady]; ok {
		first = value
	}
	switch anyKind.FindString(name) {
	case "_total{", "_count{":
		slope = (end - first) / float64(w.seconds[w.rounds-1]-w.seconds[w.rounds-steady])
	case "_timestamp_seconds{":
		slope = map[bool]float64{true: 1}[end > first]
	case "_seconds{":
		slope = map[bool]float64{true: 1}[end > stuck]
	}
	fmt.Fprintf(&out, "%v+%vx%d", end, slope, lastingHour)
	return out.String()
}

// fired are the labels of the alerts that fire at the end of the hour: promtool prints what nobody expects.
func (w *watched) fired() (out []map[string]string) {
	w.t.Helper()
	var series []map[string]string
	for name, rounds := range w.series {
		series = append(series, map[string]string{"series": name, "values": w.values(name, rounds)})
	}
	dir := w.t.TempDir()
	test := map[string]any{"rule_files": []string{filepath.Join(root(w.t), "deploy/prometheus/alerts.yml")}, "evaluation_interval": "15s", "tests": []any{
		map[string]any{"interval": "1s", "input_series": series, "promql_expr_test": []any{
			map[string]any{"expr": `ALERTS{alertstate="firing"}`, "eval_time": fmt.Sprintf("%ds", w.seconds[w.rounds-1]+lastingHour), "exp_samples": []any{}},
		}},
	}}
	text, err := yaml.Marshal(test)
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(filepath.Join(dir, "test.yml"), text, 0o600))
	cmd := exec.CommandContext(w.t.Context(), "promtool", "test", "rules", "test.yml")
	cmd.Dir = dir
	printed, err := cmd.CombinedOutput()
	_, got, found := strings.Cut(string(printed), "got:")
	require.Equal(w.t, err != nil, found, "%s", printed)
	for _, m := range regexp.MustCompile(`\{(.*?)\} 1E\+00`).FindAllStringSubmatch(got, -1) {
		labels := make(map[string]string)
		for _, l := range regexp.MustCompile(`(\w+)="(.*?)"`).FindAllStringSubmatch(m[1], -1) {
			labels[l[1]] = l[2]
		}
		delete(labels, "alertstate")
		delete(labels, "__name__")
		out = append(out, labels)
	}
	require.Equal(w.t, found, len(out) > 0, "%s", printed)
	return out
}

func names(alerts []map[string]string) (out []string) {
	for _, a := range alerts {
		out = append(out, a["alertname"])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

type alertmanager struct{ *stack.Process }

// startAlertmanager starts one with the routes and inhibit_rules of deploy/alertmanager.yml. Its receivers
// send nothing.
func startAlertmanager(t *testing.T) alertmanager {
	t.Helper()
	path, err := exec.LookPath("alertmanager")
	if err != nil {
		path, err = exec.LookPath("prometheus-alertmanager")
	}
	if err != nil {
		t.Skip("SKIPPED: alertmanager is not on the PATH; `make alertmanager` installs it")
	}
	var config map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(read(t, filepath.Join(root(t), "deploy/alertmanager.yml"))), &config))
	config["receivers"] = []any{map[string]any{"name": "mail"}, map[string]any{"name": "pager"}}
	text, err := yaml.Marshal(config)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "alertmanager.yml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return alertmanager{stack.Server(t, path, func(port int) (args, env []string) {
		return []string{"--config.file=" + file, "--storage.path=" + t.TempDir(), fmt.Sprintf("--web.listen-address=127.0.0.1:%d", port), "--cluster.listen-address="}, nil
	})}
}

// notified posts alerts, as a Prometheus with external_labels does, and returns what each receiver gets.
// Another fleet has no worker all the while, which hides nothing of this one.
func (am alertmanager) notified(t *testing.T, fleet string, fired []map[string]string) (pages, mails []string) {
	t.Helper()
	type posted struct {
		Labels map[string]string `json:"labels"`
	}
	var all []posted
	for _, labels := range append(fired,
		map[string]string{"alertname": "TallyrollNoWorker", "severity": "critical", "namespace": "other"},
		map[string]string{"alertname": "TallyrollStreamUnread", "severity": "critical", "namespace": "other", "stream": fleet},
	) {
		labels = maps.Clone(labels)
		if labels["namespace"] == "" {
			labels["namespace"] = fleet
		}
		all = append(all, posted{labels})
	}
	base := "http://" + am.Addr() + "/api/v2/alerts"
	for _, one := range all { // one by one, so that they are taken in this order
		status, body, err := stack.Do(http.MethodPost, base, []posted{one})
		require.True(t, err == nil && status == http.StatusOK, "%d %s %v", status, body, err)
	}
	stack.Eventually(t, "the last alert to be inhibited", func() (bool, string) {
		status, body, err := stack.Do(http.MethodGet, base, nil)
		var shown []struct {
			Labels    map[string]string
			Receivers []struct{ Name string }
			Status    struct{ State string }
		}
		if err != nil || status != http.StatusOK || json.Unmarshal(body, &shown) != nil {
			return false, fmt.Sprint(status, string(body), err)
		}
		pages, mails = []string{}, []string{}
		seen, done := 0, false
		for _, a := range shown {
			switch {
			case a.Labels["stream"] == fleet:
				done = a.Status.State == "suppressed"
			case a.Labels["namespace"] != fleet:
			case a.Status.State == "suppressed":
				seen++
			case a.Receivers[0].Name == "pager":
				seen++
				pages = append(pages, strings.TrimSpace(a.Labels["alertname"]+" "+a.Labels["stream"]))
			default:
				seen++
				mails = append(mails, strings.TrimSpace(a.Labels["alertname"]+" "+a.Labels["stream"]))
			}
		}
		return done && seen == len(fired), string(body)
	})
	slices.Sort(pages) // route.group_by: one notification per alert and stream
	slices.Sort(mails)
	return slices.Compact(pages), slices.Compact(mails)
}
