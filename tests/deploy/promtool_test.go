package deploy_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"tallyroll/tests/stack"
)

// needPrometheus skips a test, and says how to get what it lacks. `make test-machine` says so again at its
// end.
func needPrometheus(t *testing.T) {
	t.Helper()
	if !stack.HasPrometheus() {
		t.Skip("SKIPPED: prometheus and promtool are not on the PATH; `make prometheus` installs them")
	}
}

// What promtool checks of deploy/prometheus: the configuration, the rules, and when each alert fires.
func TestPromtool(t *testing.T) {
	needPrometheus(t)
	dir := filepath.Join(root(t), "deploy/prometheus")
	for _, args := range [][]string{{"check", "config", "prometheus.yml"}, {"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		if out, err := tryIn(dir, "promtool", args...); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// amtool takes the example for Alertmanager, which rings for what is critical and writes of the
// rest.
func TestAlertmanagerExample(t *testing.T) {
	if _, err := exec.LookPath("amtool"); err != nil {
		t.Skip("SKIPPED: amtool is not on the PATH; `make alertmanager` installs it")
	}
	file := "deploy/alertmanager.yml"
	if out, err := tryIn(root(t), "amtool", "check-config", file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for severity, want := range map[string]string{"critical": "pager", "warning": "mail"} {
		out, err := tryIn(root(t), "amtool", "config", "routes", "test", "--config.file="+file, "severity="+severity, "alertname=TallyrollLag")
		if err != nil || strings.TrimSpace(out) != want {
			t.Errorf("%s goes to %q, want %s (%v)", severity, out, want, err)
		}
	}
}

type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// alerts are those of deploy/prometheus/alerts.yml.
func alerts(t *testing.T) (out []alert) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	require.NoError(t, yaml.Unmarshal([]byte(read(t, filepath.Join(root(t), "deploy/prometheus/alerts.yml"))), &file))
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	if len(out) < 10 {
		t.Fatalf("only %d alerts", len(out))
	}
	return out
}

// Each alert says how bad it is and what happened, and has a section of its own in docs/operations.md and a
// test.
func TestEachAlertHasARunbook(t *testing.T) {
	page := read(t, filepath.Join(root(t), "docs/operations.md"))
	tests := read(t, filepath.Join(root(t), "deploy/prometheus/alerts_test.yml"))
	var sections, names []string
	for _, m := range regexp.MustCompile(`(?m)^### (Tallyroll\w+)$`).FindAllStringSubmatch(page, -1) {
		sections = append(sections, m[1])
	}
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
		if severity := a.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s has the severity %q, want critical or warning", a.Alert, severity)
		}
		if a.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", a.Alert)
		}
		if got, want := a.Annotations["runbook_url"], "docs/operations.md#"+strings.ToLower(a.Alert); got != want {
			t.Errorf("%s has the runbook %q, want %q", a.Alert, got, want)
		}
		fires := regexp.MustCompile(`alertname: ` + a.Alert + `\n\s+exp_alerts:\n\s+- exp_labels`)
		if !fires.MatchString(tests) {
			t.Errorf("alerts_test.yml does not show when %s fires", a.Alert)
		}
		require.Contains(t, tests, "alertname: "+a.Alert+", exp_alerts: []", "alerts_test.yml shows when %s does not fire", a.Alert)
	}
	if !slices.Equal(sections, names) {
		t.Errorf("docs/operations.md has sections about %v, and the alerts are %v", sections, names)
	}
}
