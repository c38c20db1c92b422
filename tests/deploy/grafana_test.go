package deploy_test

import (
	"encoding/json"
	"net/http"
	neturl "net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"tallyroll/tests/stack"
)

// dashboard is what the tests look at of one.
type dashboard struct {
	UID, Title string
	Tags       []string
	Panels     []panel
	Templating struct {
		List []struct {
			Name, Type string
			Datasource grafanaRef
			Query      json.RawMessage
			Current    struct{ Value any }
		}
	}
}

type panel struct {
	ID          int
	Type, Title string
	Datasource  grafanaRef
	GridPos     struct{ H, W, X, Y int }
	Targets     []target
}

type grafanaRef struct{ Type, UID string }

type target struct {
	RefID      string
	Datasource grafanaRef
	Expr       string // of Prometheus
	URL        string // of Infinity
}

// chosen returns the data source that a dashboard uses until a reader chooses another one.
func (d dashboard) chosen(ref grafanaRef) grafanaRef {
	for _, v := range d.Templating.List {
		if uid, ok := v.Current.Value.(string); ok && v.Type == "datasource" && ref.UID == "${"+v.Name+"}" {
			ref.UID = uid
		}
	}
	return ref
}

func (d dashboard) targets() (out []target) {
	for _, p := range d.Panels {
		out = append(out, p.Targets...)
	}
	return out
}

// dashboards are those of deploy/grafana.
func dashboards(t *testing.T) (out []dashboard) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(t), "deploy/grafana/dashboards/*.json"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d dashboards (%v)", len(files), err)
	}
	for _, file := range files {
		var d dashboard
		require.NoErrorf(t, json.Unmarshal([]byte(read(t, file)), &d), "%s", file)
		out = append(out, d)
	}
	return out
}

// dataSource is one that Grafana is given.
type dataSource struct {
	Name, UID, Type, URL string
	IsDefault            bool `yaml:"isDefault"`
	JSONData             struct {
		AllowedHosts []string `yaml:"allowedHosts"`
	} `yaml:"jsonData"`
}

func dataSources(t *testing.T) map[string]dataSource {
	t.Helper()
	var file struct{ Datasources []dataSource }
	require.NoError(t, yaml.Unmarshal([]byte(read(t, filepath.Join(root(t), "deploy/grafana/provisioning/datasources/tallyroll.yaml"))), &file))
	out := make(map[string]dataSource)
	for _, d := range file.Datasources {
		out[d.UID] = d
	}
	return out
}

// Dashboards name data sources that there are, and no two panels the same place or id.
func TestDashboards(t *testing.T) {
	sources := dataSources(t)
	uids := make(map[string]bool)
	var asked []string
	for _, d := range dashboards(t) {
		if d.UID == "" || uids[d.UID] || d.Title == "" || !slices.Contains(d.Tags, "tallyroll") {
			t.Errorf("dashboard %q has the uid %q, the tags %v", d.Title, d.UID, d.Tags)
		}
		uids[d.UID] = true
		known := func(where string, ref grafanaRef) {
			t.Helper()
			chosen := d.chosen(ref)
			if s, there := sources[chosen.UID]; !there || s.Type != ref.Type || chosen == ref {
				t.Errorf("%s, %s: the data source is %+v, want a variable whose value is provisioned", d.Title, where, ref)
			}
			asked = append(asked, chosen.UID)
		}
		ids := make(map[int]bool)
		for i, p := range d.Panels {
			if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s, %s: id %d, place %+v", d.Title, p.Title, p.ID, p.GridPos)
			}
			ids[p.ID] = true
			for _, other := range d.Panels[:i] {
				a, b := p.GridPos, other.GridPos
				if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
					t.Errorf("%s: %s lies over %s", d.Title, p.Title, other.Title)
				}
			}
			if p.Type == "row" {
				continue
			}
			known(p.Title, p.Datasource)
			if len(p.Targets) == 0 {
				t.Errorf("%s, %s asks nothing", d.Title, p.Title)
			}
			for _, q := range p.Targets {
				known(p.Title, q.Datasource)
				if q.RefID == "" || (q.Expr == "") == (q.URL == "") {
					t.Errorf("%s, %s: %+v", d.Title, p.Title, q)
				}
				if d.chosen(q.Datasource).UID == "tallyroll" && !strings.Contains(q.Expr, promqlMetric) {
					t.Errorf("%s, %s asks promql for %s, which has only %s", d.Title, p.Title, q.Expr, promqlMetric)
				}
			}
		}
		for _, v := range d.Templating.List {
			if v.Type == "query" {
				known("variable "+v.Name, v.Datasource)
			}
		}
	}
	for uid := range sources {
		if !slices.Contains(asked, uid) {
			t.Errorf("no dashboard uses the data source %s", uid)
		}
	}
}

// foreignMetrics are those of the exporters in deploy/compose.yml that the alerts and dashboards ask for.
var foreignMetrics = []string{"redis_memory_used_bytes", "redis_memory_max_bytes", "jetstream_server_total_message_bytes", "jetstream_server_max_storage"}

var (
	anyMetric = regexp.MustCompile(`\b(?:tallyroll|process|go|redis|jetstream|nats)_[a-z_]+`)
	metricOf  = regexp.MustCompile(anyMetric.String() + `(\{[^}]*\})?`)
)

var grafanaVariable = regexp.MustCompile(`\$\{?(\w+)(?::\w+)?\}?`)

// Every metric that a dashboard asks Prometheus for is that of the jobs and instances that are chosen.
// Counters, which promql and query answer about, have neither. The variables are the dashboard's own, or
// Grafana's.
func TestDashboardsAskForTheChosenInstances(t *testing.T) {
	asked := 0
	for _, d := range dashboards(t) {
		var own []string
		for _, v := range d.Templating.List {
			own = append(own, v.Name)
		}
		for _, q := range d.targets() {
			for _, m := range grafanaVariable.FindAllStringSubmatch(q.Expr+q.URL, -1) {
				if !strings.HasPrefix(m[1], "__") {
					require.Contains(t, own, m[1], "the variables of %s", d.Title)
				}
			}
			if d.chosen(q.Datasource).UID != "prometheus" {
				continue
			}
			metrics := metricOf.FindAllStringSubmatch(q.Expr, -1)
			require.NotEmpty(t, metrics, "the metrics that %s asks for in %s", d.Title, q.Expr)
			for _, m := range metrics {
				asked++
				require.Contains(t, m[1], `job=~"$job"`, "%s asks for %s", d.Title, m[0])
				require.Contains(t, m[1], `instance=~"$instance"`, "%s asks for %s", d.Title, m[0])
			}
		}
	}
	require.GreaterOrEqual(t, asked, 45)
}

// What the Infinity data source asks for is answered by query, and the hosts that it may ask are those that
// it asks.
func TestInfinityAsksWhatQueryAnswers(t *testing.T) {
	t.Parallel()
	nats, redis := stack.NATS(t), stack.Redis(t)
	stack.Ingest(t, nats, redis)
	query := stack.Query(t, redis, "NATS_URL="+nats.URL())
	const host = "http://query:8080"
	if allowed := dataSources(t)["tallyroll-api"].JSONData.AllowedHosts; !slices.Equal(allowed, []string{host}) {
		t.Errorf("Infinity may ask %v, want %s", allowed, host)
	}
	ago := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(-d).UnixMilli(), 10) }
	values := map[string]string{"key": neturl.QueryEscape("a/b c"), "window": "1h", "step": "5m", "__from": ago(6 * time.Hour), "__to": ago(time.Minute)}
	asked := 0
	ask := func(where, address string) {
		path, ours := strings.CutPrefix(address, host)
		if !ours {
			t.Errorf("%s asks %s", where, address)
			return
		}
		path = grafanaVariable.ReplaceAllStringFunc(path, func(v string) string { return values[grafanaVariable.FindStringSubmatch(v)[1]] })
		status, body, err := stack.Do(http.MethodGet, query.URL()+path, nil)
		if err != nil || status != http.StatusOK {
			t.Errorf("%s: %s answers %d %s %v", where, path, status, body, err)
		}
		asked++
	}
	for _, d := range dashboards(t) {
		for _, q := range d.targets() {
			if q.URL != "" {
				ask(d.Title, q.URL)
			}
		}
		for _, v := range d.Templating.List {
			var of struct{ InfinityQuery struct{ URL string } }
			if json.Unmarshal(v.Query, &of) == nil && of.InfinityQuery.URL != "" {
				ask(d.Title+", variable "+v.Name, of.InfinityQuery.URL)
			}
		}
	}
	if asked < 6 {
		t.Errorf("only %d addresses were asked", asked)
	}
}

// Profile see of compose starts what the configurations name, and mounts what they read.
func TestComposeSee(t *testing.T) {
	config, err := runCompose(t, nil, "-f", "deploy/compose.yml", "--profile", "see", "config")
	require.NoError(t, err)
	for name, wants := range map[string][]string{
		"prometheus":     {"image: prom/prometheus:v", "/etc/prometheus"},
		"grafana":        {"image: grafana/grafana:1", "/etc/grafana/provisioning", "/etc/grafana/dashboards"},
		"redis-exporter": {"image: oliver006/redis_exporter:v"},
		"nats-exporter":  {"image: natsio/prometheus-nats-exporter:", "-jsz=streams", "http://nats:8222"},
		"promql":         {"/promql", "PROMQL_ADDR: 0.0.0.0:9091"},
	} {
		text := service(t, config, name)
		require.Contains(t, text, "see", "the profile of %s", name)
		for _, want := range wants {
			require.Contains(t, text, want, "%s", name)
		}
	}
	scraped := read(t, filepath.Join(root(t), "deploy/prometheus/prometheus.yml"))
	for _, at := range regexp.MustCompile(`"([a-z-]+):\d+"`).FindAllStringSubmatch(scraped, -1) {
		if at[1] != "alertmanager" {
			service(t, config, at[1])
		}
	}
	for _, s := range dataSources(t) {
		if s.URL == "" {
			continue
		}
		u, err := neturl.Parse(s.URL)
		require.NoError(t, err)
		service(t, config, u.Hostname())
	}
	provider := read(t, filepath.Join(root(t), "deploy/grafana/provisioning/dashboards/tallyroll.yaml"))
	require.Contains(t, provider, "path: /etc/grafana/dashboards\n", "the provider reads another directory than compose mounts")
}
