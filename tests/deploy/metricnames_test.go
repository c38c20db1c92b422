package deploy_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

var (
	sampleName = regexp.MustCompile(`(?m)^([a-z_]+)[{ ]`)
	familyType = regexp.MustCompile(`(?m)^# TYPE (tallyroll_[a-z_]+) (\w+)$`)
)

// runningMetrics is what ingest, query, collect and /probe tell, by name, when all of them have had something
// to do.
func runningMetrics(t *testing.T) map[string]string {
	t.Helper()
	certificate := stack.NewCertificate(t)
	nats, redis := stack.NATS(t), stack.Redis(t, stack.RedisTLS(certificate))
	rules := filepath.Join(t.TempDir(), "rules.yaml") // some metrics tell of rules alone
	require.NoError(t, os.WriteFile(rules, []byte("- {stream: ORDERS, subject: orders.>, count: [{key: orders}]}\n"), 0o600))
	ingest := stack.Ingest(t, nats, stack.OverTLS(certificate, redis), "INGEST_RULES="+rules)
	query := stack.Query(t, redis, "NATS_URL="+nats.URL(), "QUERY_TAKE=any", "QUERY_LIMITS_FILE="+filepath.Join(root(t), "deploy/examples/limits.yml"))
	promql := stack.PromQL(t, redis)
	collect := stack.Collect(t, nats)
	rls, grpc := stack.RLS(t, redis, "RLS_LIMITS_FILE="+filepath.Join(root(t), "deploy/examples/limits.yml"))
	askGRPC(t, "http://"+grpc+"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
	watch := stack.Watch(t, nats, redis, thresholds(t))
	js, err := jetstream.New(nats.Conn())
	require.NoError(t, err)
	for _, body := range []string{"", "not JSON"} {
		if _, err := js.Publish(t.Context(), "hits.checkout", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	stack.EventuallyTotal(t, query.URL(), "checkout", "1h", 1)
	if status, body, err := stack.Do(http.MethodPost, query.URL()+"/v1/take", map[string]any{"key": "a", "window": "1m", "max": 1}); err != nil || status != http.StatusOK {
		t.Fatal(status, string(body), err)
	}
	if status, body, err := stack.Do(http.MethodPost, query.URL()+"/v1/settle", map[string]any{"limit": "search", "key": "a", "id": "r", "n": 1}); err != nil || status != http.StatusNotFound {
		t.Fatal(status, string(body), err)
	}
	if status, body, err := stack.Do(http.MethodPost, collect.URL()+"/v1/hits", map[string]any{"key": "a"}); err != nil || status != http.StatusAccepted {
		t.Fatal(status, string(body), err)
	}
	addresses := map[string]string{
		"collect": collect.URL() + "/metrics",
		"promql":  promql.URL() + "/metrics",
		"rls":     rls.URL() + "/metrics",
		"watch":   watch.URL() + "/metrics",
		"ingest":  ingest.URL() + "/metrics", "query": query.URL() + "/metrics", "probe": query.URL() + "/probe?key=checkout&window=1h",
	}
	out := make(map[string]string)
	stack.Eventually(t, "the gauges of both clocks, and of the streams", func() (bool, string) {
		for name, address := range addresses {
			status, body, err := stack.Do(http.MethodGet, address, nil)
			if err != nil || status != http.StatusOK {
				return false, fmt.Sprint(name, status, string(body), err)
			}
			out[name] = string(body)
		}
		return strings.Contains(out["watch"], "tallyroll_watch_delay_seconds_count{") && strings.Contains(out["watch"], "tallyroll_watch_waiting{") && strings.Contains(out["promql"], "tallyroll_promql_request_seconds_count{") && strings.Contains(out["ingest"], `clock="nats"`) && strings.Contains(out["ingest"], `clock="redis"`) &&
			strings.Contains(out["ingest"], "tallyroll_ingest_lag_seconds{") && strings.Contains(out["query"], "tallyroll_stream_owned{"), out["ingest"]
	})
	return out
}

// thresholds writes a file of rules for watch, of which one fires at the first hit of checkout.
func thresholds(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "watch.yml")
	require.NoError(t, os.WriteFile(file, []byte("targets: {bus: {nats: alerts}}\nrules: [{name: busy, key: checkout, window: 1h, above: 0, to: [bus]}]\n"), 0o600))
	return file
}

// askGRPC sends an empty message. The answer does not matter.
func askGRPC(t *testing.T, url string) {
	t.Helper()
	var plain http.Protocols
	plain.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: &plain}}
	resp, err := client.Post(url, "application/grpc", strings.NewReader("\x00\x00\x00\x00\x00")) // its length
	require.NoError(t, err)
	_ = resp.Body.Close()
	client.CloseIdleConnections()
}

// promqlMetric is of the program promql, which has a module and tests of its own.
const promqlMetric = "tallyroll_hits"

// checkMetrics asks promtool whether names and descriptions are as Prometheus's conventions want it.
func checkMetrics(t *testing.T, metrics map[string]string) {
	needPrometheus(t)
	for name, text := range metrics {
		cmd := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("promtool check metrics on %s: %v\n%s", name, err, out)
		}
	}
}

// Every metric that an alert or a dashboard asks for is exposed by the programs, or is a known one of an
// exporter; docs/metrics.md describes all of the programs' own, and no other.
func TestNamedMetricsExist(t *testing.T) {
	t.Parallel()
	samples, families := make(map[string]bool), make(map[string]string)
	metrics := runningMetrics(t)
	t.Run("are conventional", func(t *testing.T) { checkMetrics(t, metrics) })
	for _, text := range metrics {
		for _, m := range sampleName.FindAllStringSubmatch(text, -1) {
			samples[m[1]] = true
		}
		for _, m := range familyType.FindAllStringSubmatch(text, -1) {
			families[m[1]] = m[2]
		}
	}
	if len(families) < 30 {
		t.Errorf("only %d metrics: %v", len(families), families)
	}
	named, unused := 0, slices.Clone(foreignMetrics)
	exist := func(where, expr string) {
		t.Helper()
		for _, name := range anyMetric.FindAllString(expr, -1) {
			named++
			if !samples[name] && !slices.Contains(foreignMetrics, name) {
				t.Errorf("%s names %s, which no program has", where, name)
			}
			unused = slices.DeleteFunc(unused, func(foreign string) bool { return foreign == name })
		}
	}
	for _, a := range alerts(t) {
		exist(a.Alert, a.Expr)
	}
	for _, d := range dashboards(t) {
		for _, q := range d.targets() {
			if d.chosen(q.Datasource).UID == "prometheus" {
				exist(d.Title, q.Expr)
			}
		}
	}
	if named < 40 {
		t.Errorf("only %d names were looked up", named)
	}
	if len(unused) > 0 {
		t.Errorf("nothing asks for %v", unused)
	}

	described := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `(tallyroll_[a-z_]+)(?:\\{[a-z, ]+\\})?` \\| (\\w+) \\|").FindAllStringSubmatch(read(t, filepath.Join(root(t), "docs/metrics.md")), -1) {
		described[m[1]] = m[2]
	}
	delete(described, promqlMetric)
	require.Equal(t, families, described, "the metrics that docs/metrics.md describes")
}
