package bench_test

import (
	"bufio"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
)

//go:embed testdata/tables.md
var tablesText string

var tablesPage = template.Must(template.New("tables").Parse(tablesText))

// view is what the page of tables shows, by the names in testdata/tables.md. Most are the rows of a table.
type view map[string]any

const (
	beginMark = "<!-- measured: begin (make bench rewrites from here) -->"
	endMark   = "<!-- measured: end -->"
	plotFile  = "benchmarks.svg" // beside the page
)

// tables are the measured part of the page.
func (v view) tables(t *testing.T, r *rig, o options) string {
	t.Helper()
	v["Runs"], v["Machine"], v["Clients"] = o.runs, machine(t, r), o.size(dashboardClients)
	command := fmt.Sprintf("make bench RUNS=%d SCALE=%g", o.runs, o.scale)
	if o.fleet {
		command += " FLEET=1"
	}
	v["Command"] = command
	var rates []string
	for _, rate := range footprintRates {
		rates = append(rates, rate.name)
	}
	v["Rates"] = rates
	var out strings.Builder
	require.NoError(t, tablesPage.Execute(&out, v))
	return out.String()
}

// write rewrites the measured part of the page of tables, and the plot beside it.
func (v view) write(t *testing.T, r *rig, o options, throughput []comparison) {
	t.Helper()
	tables := v.tables(t, r, o)
	if o.out == "" {
		fmt.Print(tables)
		return
	}
	old, err := os.ReadFile(o.out)
	require.NoError(t, err)
	text, err := withTables(string(old), tables)
	require.NoErrorf(t, err, "%s", o.out)
	require.NoError(t, os.WriteFile(o.out, []byte(text), 0o644))
	for _, c := range throughput {
		if c.workload.name == plotted {
			require.NoError(t, plotRates(c, filepath.Join(filepath.Dir(o.out), plotFile)))
		}
	}
	fmt.Println("written:", o.out)
}

// withTables is a page with other tables between its marks. What stands before and after them stays.
func withTables(page, tables string) (string, error) {
	head, rest, ok := strings.Cut(page, beginMark)
	_, tail, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return "", fmt.Errorf("no lines %q and %q: there is no place for the tables", beginMark, endMark)
	}
	return head + beginMark + "\n\n" + tables + "\n" + endMark + tail, nil
}

// The page that `make bench` rewrites has a place for the tables, and keeps what stands around them.
func TestTablesHaveTheirPlace(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks-tables.md")
	require.NoError(t, err)
	text, err := withTables(string(page), "| new |\n")
	require.NoError(t, err)
	if !strings.HasPrefix(text, "# Benchmark tables\n") || !strings.Contains(text, beginMark+"\n\n| new |\n\n"+endMark+"\n\n## What a decision costs\n") {
		t.Errorf("the page became\n%s", text)
	}
	_, err = withTables("a page without marks", "| new |\n")
	require.Error(t, err)
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	switch n := len(v); {
	case n == 0:
		return 0
	case n%2 == 1:
		return v[n/2]
	default:
		return (v[n/2-1] + v[n/2]) / 2
	}
}

func spread(v []float64) string {
	return fmt.Sprintf("%s (%s to %s)", boot.Thousands(median(v)), boot.Thousands(slices.Min(v)), boot.Thousands(slices.Max(v)))
}

func ratio(a, b float64) string {
	if b == 0 {
		return "–"
	}
	return short(a / b)
}

// short has three significant digits, without an exponent.
func short(x float64) string {
	switch {
	case x >= 100:
		return boot.Thousands(x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	default:
		return fmt.Sprintf("%.3f", x)
	}
}

func cellsOf(cells ...string) string { return strings.Join(cells, " | ") }

// machine is what the figures depend on.
func machine(t *testing.T, r *rig) [][2]string {
	t.Helper()
	info, err := r.rdb.Info(t.Context(), "server").Result()
	require.NoError(t, err)
	redisVersion := "?"
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			redisVersion = strings.TrimSpace(v)
		}
	}
	return [][2]string{
		{"processor", fmt.Sprintf("%s, %d cores for everything", firstOf("/proc/cpuinfo", "model name"), runtime.NumCPU())},
		{"memory", strings.TrimSuffix(firstOf("/proc/meminfo", "MemTotal"), "kB") + "KiB"},
		{"Go", runtime.Version()},
		{"nats-server, nats.go", output("go", "list", "-m", "-f", "{{.Version}}", "github.com/nats-io/nats-server/v2") + ", " + output("go", "list", "-m", "-f", "{{.Version}}", "github.com/nats-io/nats.go")},
		{"Redis, go-redis", redisVersion + ", " + output("go", "list", "-m", "-f", "{{.Version}}", "github.com/redis/go-redis/v9")},
		{"Tallyroll", output("git", "describe", "--tags", "--always", "--dirty")},
	}
}

func firstOf(path, key string) string {
	f, err := os.Open(path)
	if err != nil {
		return "?"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return "?"
}

func output(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(out))
}
