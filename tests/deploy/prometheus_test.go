package deploy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	neturl "net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// prometheusFiles is a copy of deploy/prometheus in which everything is quick and the hosts are these
// addresses.
func prometheusFiles(t *testing.T, ingest, query, collect, promql string) (config string) {
	t.Helper()
	dir := t.TempDir()
	replaced := func(text, pattern, with string) string {
		t.Helper()
		out := regexp.MustCompile(pattern).ReplaceAllString(text, with)
		if out == text {
			t.Fatalf("deploy/prometheus has no %s", pattern)
		}
		return out
	}
	source := filepath.Join(root(t), "deploy/prometheus")
	text := read(t, filepath.Join(source, "prometheus.yml"))
	text = replaced(text, `(scrape|evaluation)_interval: 15s`, "${1}_interval: 500ms")
	text = replaced(text, `dns_sd_configs:\n\s+- \{ names: \[ingest\].*\}`, `static_configs: [{ targets: ["`+ingest+`"] }]`)
	text = replaced(text, `dns_sd_configs:\n\s+- \{ names: \[query\].*\}`, `static_configs: [{ targets: ["`+query+`"] }]`)
	text = replaced(text, `dns_sd_configs:\n\s+- \{ names: \[collect\].*\}`, `static_configs: [{ targets: ["`+collect+`"] }]`)
	text = replaced(text, `"query:8080"`, `"`+query+`"`)
	text = replaced(text, `"promql:9091"`, `"`+promql+`"`)
	text = replaced(text, `(?s)  # The memory of Redis.*$`, "")
	rules := replaced(read(t, filepath.Join(source, "alerts.yml")), `for: \d+m`, "for: 1s")
	rules = replaced(rules, `tallyroll_as_of_age_seconds\) > 60`, "tallyroll_as_of_age_seconds) > 5")
	config = filepath.Join(dir, "prometheus.yml")
	for file, text := range map[string]string{config: text, filepath.Join(dir, "alerts.yml"): rules} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	return config
}

// fromPrometheus decodes the data of an answer of its HTTP API.
func fromPrometheus[A any](address string) (out A, err error) {
	status, body, err := stack.Do(http.MethodGet, address, nil)
	if err != nil {
		return out, err
	}
	var answer struct{ Data A }
	err = json.Unmarshal(body, &answer)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	return answer.Data, err
}

// instant is the value of each series that an expression selects, by all its labels.
func instant(p *stack.PrometheusServer, expr string) (map[string]string, error) {
	type vector struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	data, err := fromPrometheus[vector](p.URL() + "/api/v1/query?query=" + neturl.QueryEscape(expr))
	out := make(map[string]string)
	for _, r := range data.Result {
		out[fmt.Sprint(r.Metric)] = fmt.Sprint(r.Value[1])
	}
	return out, err
}

// firing is the names of the alerts that fire.
func firing(p *stack.PrometheusServer) ([]string, error) {
	type found struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	data, err := fromPrometheus[found](p.URL() + "/api/v1/alerts")
	var out []string
	for _, a := range data.Alerts {
		if a.State == "firing" {
			out = append(out, a.Labels["alertname"])
		}
	}
	slices.Sort(out)
	return slices.Compact(out), err
}

// A real Prometheus with the files of deploy/prometheus scrapes ingest, query, collect and /probe. Alerts
// fire when the worker is killed, and end when there is one again.
func TestAlertsFireWhenTheWorkerIsKilled(t *testing.T) {
	t.Parallel()
	needPrometheus(t)
	nats, redis := stack.NATS(t), stack.Redis(t)
	ingest := stack.Ingest(t, nats, redis)
	query := stack.Query(t, redis, "NATS_URL="+nats.URL())
	js, err := jetstream.New(nats.Conn())
	require.NoError(t, err)
	publish := func(body string) {
		t.Helper()
		if _, err := js.Publish(t.Context(), "hits.checkout", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	publish(`{"n":7}`)
	p := stack.Prometheus(t, prometheusFiles(t, ingest.Addr(), query.Addr(), stack.Collect(t, nats).Addr(), stack.PromQL(t, redis).Addr()))
	eventually := func(expr string, want map[string]string) {
		t.Helper()
		stack.Eventually(t, expr, func() (bool, string) {
			got, err := instant(p, expr)
			return err == nil && fmt.Sprint(got) == fmt.Sprint(want), fmt.Sprint(got, err)
		})
	}
	eventually("sum by (job) (up)", map[string]string{
		"map[job:tallyroll-ingest]": "1", "map[job:tallyroll-query]": "1", "map[job:tallyroll-collect]": "1", "map[job:tallyroll-promql]": "1",
		"map[job:tallyroll-probe]": "1", "map[job:tallyroll-top]": "1",
	})
	for _, job := range []string{"tallyroll-probe", "tallyroll-top"} {
		eventually(fmt.Sprintf(`max by (key) (tallyroll_window_hits{job=%q, window="1h"})`, job), map[string]string{"map[key:checkout]": "7"})
	}
	eventually(`count by (instance) (tallyroll_window_hits_lower{job="tallyroll-probe"})`, map[string]string{"map[instance:checkout]": "2"}) // two windows
	eventually("sum(tallyroll_ingest_hits_total)", map[string]string{"map[]": "7"})
	eventually("count(tallyroll_build_info)", map[string]string{"map[]": "4"})

	for _, name := range []string{
		"ingest_commit_seconds", "ingest_commit_commands", "ingest_commit_hits", "query_request_seconds", "query_redis_seconds",
		"collect_request_seconds", "collect_store_seconds", "promql_request_seconds",
	} {
		eventually(fmt.Sprintf("count(histogram_count(tallyroll_%s)) > bool 0", name), map[string]string{"map[]": "1"}) // it is native
	}

	eventuallyFiring := func(want ...string) {
		t.Helper()
		stack.Eventually(t, "the alerts "+strings.Join(want, ", "), func() (bool, string) {
			got, err := firing(p)
			return err == nil && slices.Equal(got, want), fmt.Sprint(got, err)
		})
	}
	eventuallyFiring() // nothing is wrong
	publish("not a hit")
	eventuallyFiring("TallyrollRejects")
	ingest.Kill()
	publish("")
	eventuallyFiring("TallyrollAnswersOld", "TallyrollNoWorker", "TallyrollRejects", "TallyrollStreamUnread")
	ingest.Start()
	eventuallyFiring("TallyrollRejects") // for ten minutes
}
