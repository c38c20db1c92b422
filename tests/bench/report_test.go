package bench_test

import (
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

	"tallyroll/internal/platform/human"
)

//go:embed testdata/tables.md
var tablesText string

var tablesPage = template.Must(template.New("tables").Parse(tablesText))

// view is what the page of tables shows, by the names in testdata/tables.md.
type view map[string]any

const (
	beginMark = "<!-- measured: begin (make bench rewrites from here) -->\n\n"
	endMark   = "\n<!-- measured: end -->"
	plotFile  = "benchmarks.svg" // in the page's directory
)

// tables are the measured part of the page.
func (v view) tables(t *testing.T, o options) string {
	t.Helper()
	v["Runs"], v["Clients"], v["Rates"] = o.runs, o.size(dashboardClients), footprintRates
	v["PerLoad"] = human.Thousands(float64(o.size(agedCounters)))
	v["Command"] = fmt.Sprintf("make bench RUNS=%d SCALE=%g", o.runs, o.scale)
	if o.fleet {
		v["Command"] = fmt.Sprint(v["Command"], " FLEET=1")
	}
	var out strings.Builder
	require.NoError(t, tablesPage.Execute(&out, v))
	return out.String()
}

// write rewrites the measured part of the page of tables, and the plot.
func (v view) write(t *testing.T, o options) {
	t.Helper()
	tables := v.tables(t, o)
	if o.out == "" {
		fmt.Print(tables)
		return
	}
	old, err := os.ReadFile(o.out)
	require.NoError(t, err)
	text, err := replaceBetween(string(old), beginMark, endMark, tables)
	require.NoErrorf(t, err, "%s", o.out)
	require.NoError(t, os.WriteFile(o.out, []byte(text), 0o644))
	for _, c := range v["Throughput"].([]comparison) {
		if c.Plot {
			require.NoError(t, plotRates(c, filepath.Join(filepath.Dir(o.out), plotFile)))
		}
	}
	fmt.Println("written:", o.out)
}

// replaceBetween is a page with another text between two marks. What stands before and after them stays.
func replaceBetween(page, begin, end, text string) (string, error) {
	head, rest, ok := strings.Cut(page, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("the marks %q and %q are missing: there is no place for\n%s", begin, end, text)
	}
	return head + begin + text + end + tail, nil
}

// The page that `make bench` rewrites has a place for the tables, and keeps what stands around them.
func TestNewTablesReplaceOnlyTheMeasuredPart(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks-tables.md")
	require.NoError(t, err)
	text, err := replaceBetween(string(page), beginMark, endMark, "| new |\n")
	require.NoError(t, err)
	if !strings.HasPrefix(text, "# Benchmark tables\n") ||
		!strings.Contains(text, beginMark+"| new |\n"+endMark+"\n\n## What a decision costs\n") {
		t.Errorf("the page became\n%s", text)
	}
	_, err = replaceBetween("a page without marks", beginMark, endMark, "| new |\n")
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

// orNone is a value as a cell of a table: none if there is nothing to show.
func orNone(value float64, format func(float64) string) string {
	if value == 0 {
		return "–"
	}
	return format(value)
}

// short has three significant digits, without an exponent.
func short(x float64) string {
	switch {
	case x >= 100:
		return human.Thousands(x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	default:
		return fmt.Sprintf("%.3f", x)
	}
}

// machine is what the figures depend on.
func machine(t *testing.T, r *rig) [][2]string {
	t.Helper()
	_, redis, _ := strings.Cut(infoOf(t, r.rdb, "server"), "redis_version:")
	redis, _, _ = strings.Cut(redis, "\r")
	version := func(module string) string { return output("go", "list", "-m", "-f", "{{.Version}}", module) }
	return [][2]string{
		{"processor", fmt.Sprintf("%s, %d cores for everything", firstOf("/proc/cpuinfo", "model name"), runtime.NumCPU())},
		{"memory", strings.TrimSuffix(firstOf("/proc/meminfo", "MemTotal"), "kB") + "KiB"},
		{"Go", runtime.Version()},
		{"nats-server, nats.go", version("github.com/nats-io/nats-server/v2") + ", " + version("github.com/nats-io/nats.go")},
		{"Redis, go-redis", redis + ", " + version("github.com/redis/go-redis/v9")},
		{"Tallyroll", output("git", "describe", "--tags", "--always", "--dirty")},
	}
}

// firstOf is the first value of a key in a file of lines, key: value.
func firstOf(path, key string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
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
