package bench_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
)

// report is all that was measured.
type report struct {
	options    options
	began      time.Time
	rig        *rig
	throughput []comparison
	multi      []row
	rules      []row
	tiers      []*tierFigures
	latency    []latencies
	memory     []footprint
	queries    []*queryFigures
	dashboards []*dashboard
	series     []*drawing
	collect    []*collecting
	limits     limitFigures
	ways       []*wayFigures
	masters    []mastersRow
	postgres   *postgresFigures
}

// tables are the measured part of the page.
func (r *report) tables(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, page.Execute(&out, r.view(t)))
	return out.String()
}

const (
	beginMark = "<!-- measured: begin (make bench rewrites from here) -->"
	endMark   = "<!-- measured: end -->"
	plotFile  = "benchmarks.svg" // beside the page
)

// write rewrites the measured part of the page of tables, and the plot beside it.
func (r *report) write(t *testing.T) {
	t.Helper()
	tables := r.tables(t)
	if r.options.out == "" {
		fmt.Print(tables)
		return
	}
	old, err := os.ReadFile(r.options.out)
	require.NoError(t, err)
	text, err := withTables(string(old), tables)
	require.NoErrorf(t, err, "%s", r.options.out)
	require.NoError(t, os.WriteFile(r.options.out, []byte(text), 0o644))
	for _, c := range r.throughput {
		if c.workload.name == plotted {
			require.NoError(t, plotRates(c, filepath.Join(filepath.Dir(r.options.out), plotFile)))
		}
	}
	fmt.Println("written:", r.options.out)
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
	if _, err := withTables("a page without marks", "| new |\n"); err == nil {
		t.Error("tables were written to a page that has no place for them")
	}
}

var page = template.Must(template.New("page").Parse(`Measured {{.Date}} with ` + "`{{.Command}}`" + `.
A figure is the median of {{.Runs}} runs per candidate. The least and the most follow in brackets.

| | |
| --- | --- |
{{range .Machine}}| {{index . 0}} | {{index . 1}} |
{{end}}
{{- range .Throughput}}
### {{.Title}}

Tallyroll and the ceiling: {{.Single}} hits per run with one per message, and {{.Batched}} with 100 per message.
{{if .Plot}}
![Hits per second of each candidate, on a logarithmic scale](` + plotFile + `)
{{end}}
| candidate | hits/s (least to most) | of the ceiling | of Tallyroll, 4 tiers | CPU µs/hit: worker | Redis | NATS | Redis commands/hit | Redis bytes/counter | worker memory |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{{range .Rows}}| {{.}} |
{{end}}{{if .Late}}
Marked *: the run took longer than cells of the finest tier live. Some may not have been written, so its rate
is too high by that.
{{end}}{{end}}
{{- if .Multi}}
### Several streams and workers

The same hits (100,000 counters, Zipf 1.1, one hit per message, 4 tiers), spread over streams.

| | hits/s (least to most) | of the first | CPU µs/hit: workers | Redis | NATS | Redis commands/hit | workers' memory |
| --- | --- | --- | --- | --- | --- | --- | --- |
{{range .Multi}}| {{.}} |
{{end}}{{end}}
{{- if .Rules}}
### Rules

The same orders of about 400 bytes (100,000 names, Zipf 1.1, 4 tiers), counted by their own ` + "`key`" + ` without
rules, and by rules. Rates, times and commands are per event.

| | events/s (least to most) | of the first of its form | CPU µs/event: worker | Redis | NATS | Redis commands/event | worker memory |
| --- | --- | --- | --- | --- | --- | --- | --- |
{{range .Rules}}| {{.}} |
{{end}}{{end}}
{{- if .Tiers.Costs}}
### Which tiers

The same hits (100,000 counters, Zipf 1.1) counted with other tiers. A sparse counter has a hit per day, and a
dense one a hit per second.

| tiers | hits/s, one per message | of the default | commands/hit | hits/s, 100 per message | of the default | commands/hit | bytes, sparse | dense |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{{range .Tiers.Costs}}| {{.}} |
{{end}}
How far the bounds of a window are apart, as a part of its total, if hits come evenly. Then the processor time
of one total by HTTP, of query and of Redis, if the counter has hits in every cell.

| tiers |{{range .Tiers.Windows}} {{.}} |{{end}}
| --- |{{range .Tiers.Windows}} --- |{{end}}
{{range .Tiers.Answers}}| {{.}} |
{{end}}{{end}}
{{- if .Latency}}
### Live

How long it takes from the acknowledgement of a published hit until every total includes it, at the default
flush interval of 250 ms. Beside it is a PING of another client meanwhile, and one of a second Redis that does
nothing: what that one waits, it waits for a processor. Publisher, NATS, worker and Redis share the machine. A
third of the time passes before anything is measured.

| load | hits/s asked | reached | visible after, p50 | p99 | PING p50 | p99 | PING of an idle Redis, p50 | p99 |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{{range .Latency}}| {{.}} |
{{end}}{{end}}
{{- if .Memory}}
### Redis bytes of a counter

What is alive at a moment, the mean over moments; names of 5 to 7 characters. Ratios are to the default tiers.
The names are included. The summaries of /v1/top are not, because a stream has them once
([scaling](scaling.md#memory-of-redis)).

| |{{range .Rates}} {{.}} |{{end}}
| --- |{{range .Rates}} --- |{{end}}
{{range .Memory}}| {{.}} |
{{end}}{{end}}
{{- range .Queries}}
### Questions, {{.State}}
{{if .Rows}}
| question | requests/s (least to most) | p50 | p99 | of /healthz | of Redis alone | CPU µs/request: query | {{if .Busy}}hits/s of the worker{{else}}Redis{{end}} |
| --- | --- | --- | --- | --- | --- | --- | --- |
{{range .Rows}}| {{.}} |
{{end}}{{end}}{{if .Live}}
| 1,000 clients of /v1/live | events/s (least to most) | per client | processors of query |
| --- | --- | --- | --- |
| {{.Live}} |
{{end}}{{if .Busy}}
If nothing is asked, the worker counts {{.Alone}} hits/s.
{{end}}{{if .Ended}}
Marked *: the backlog ended while it was measured, so the servers were idle for a part of it.
{{end}}{{end}}
{{- if .Dashboards}}
### A dashboard

{{.Clients}} clients each ask once per second for 20 counters × 5 windows (1m, 1h, 24h, 7d, 30d). An answer's
time runs from the moment at which it was due to be asked for. The clients share the machine.

| | answers/s (least to most) | p50 | p99 | processors of query | of Redis | refused |
| --- | --- | --- | --- | --- | --- | --- |
{{range .Dashboards}}| {{.}} |
{{end}}{{end}}
{{- if .Series}}
### A series of 3,600 points

The last hour of one counter with a hit in every second, in the tier ` + "`1s/1h`" + `, asked for over one connection.

| format | p50 | p99 | CPU µs/answer: query | bytes | with gzip |
| --- | --- | --- | --- | --- | --- |
{{range .Series}}| {{.}} |
{{end}}{{end}}
{{- if .Collect}}
### Hits over HTTP

Requests to collect over connections that stay open, each with its next request when it has its answer, beside
a handler of Go's net/http that reads nothing and answers 204. Client, servers and NATS share the machine.

| | connections | requests/s (least to most) | of net/http | hits/s | p50 | p99 | CPU µs/request: server | NATS | requests per message |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{{range .Collect}}| {{.}} |
{{end}}{{end}}
{{- if .Limits.Deciding}}
### Limits

Idle: every decision is about another key. Hot: all are about one key, and allowed. Refused: all are about one
key that is full. "Of INCR" is p50 beside the bare INCR of so many clients; beside refusals, that of the hot key.

| state | clients | limiter | decisions/s (least to most) | p50 | p99 | of INCR |
| --- | --- | --- | --- | --- | --- | --- |
{{range .Limits.Deciding}}| {{.}} |
{{end}}{{end}}
{{- if .Limits.Occupied}}
Redis bytes of a key with as many hits as its max, spread evenly over the window, by MEMORY USAGE.

| limiter | max=100 | max=10,000 |
| --- | --- | --- |
{{range .Limits.Occupied}}| {{.}} |
{{end}}{{end}}
{{- if .Ways}}
### Ways to have a limit decided

64 clients ask again when they have their answer, and every hit is allowed. A release of a place is part of its
decision. Round trips are what Redis has read from connections. The client is the benchmark's process, and a
library is a part of it.

| traffic | way | decisions/s (least to most) | of the first | per decision: Redis commands | round trips | CPU µs: program | Redis | client |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{{range .Ways}}| {{.}} |
{{end}}{{end}}
{{- if .Masters}}
### Redis Cluster

Hits of 1,000,000 counters drawn evenly, 100 per message, with 64 shards: what a new counter costs is in each.
The busiest master is told beside an even share. All processes share the processors of the machine.

| masters | hits/s | CPU µs/hit: worker | all masters | busiest master: CPU | commands |
| --- | --- | --- | --- | --- | --- |
{{range .Masters}}| {{.}} |
{{end}}{{end}}
{{- with .Postgres}}
### Postgres

PostgreSQL {{.Version}}. {{.Single}} hits per run with one per message, and {{.Batched}}
with 100 per message (100,000 counters, Zipf 1.1). The database is Redis or PostgreSQL with all of its
processes. Bytes are those of Redis's memory, or of PostgreSQL's tables and indexes on disk, after a run: with
hits of a minute or two.
{{if .Rows}}
| | hits/s (least to most) | of Tallyroll, default tiers | CPU µs/hit: worker | database | NATS | bytes/counter in the database | worker memory |
| --- | --- | --- | --- | --- | --- | --- | --- |
{{range .Rows}}| {{.}} |
{{end}}{{end}}{{if .Answers}}
One total over HTTP. SQLite is read in the program that answers.

| | requests/s (least to most) | of Tallyroll | p50 | p99 | CPU µs/request: program | database |
| --- | --- | --- | --- | --- | --- | --- |
{{range .Answers}}| {{.}} |
{{end}}{{end}}{{end}}`))

type view struct {
	Date, Command string
	Runs          int
	Machine       [][2]string
	Throughput    []tableView
	Multi         []string
	Rules         []string
	Tiers         tiersView
	Latency       []string
	Memory, Rates []string
	Queries       []queriesView
	Clients       int
	Dashboards    []string
	Series        []string
	Collect       []string
	Limits        limitsView
	Ways          []string
	Masters       []string
	Postgres      *postgresView
}

type tableView struct {
	Title           string
	Single, Batched string // hits per run
	Plot, Late      bool
	Rows            []string
}

func (r *report) view(t *testing.T) view {
	t.Helper()
	v := view{
		Date: r.began.UTC().Format("2006-01-02"), Runs: r.options.runs, Machine: machine(t, r.rig),
		Command: fmt.Sprintf("make bench RUNS=%d SCALE=%g", r.options.runs, r.options.scale),
	}
	if r.options.fleet {
		v.Command += " FLEET=1"
	}
	for _, c := range r.throughput {
		table := tableView{
			Title:  c.workload.title,
			Single: boot.Thousands(float64(r.options.size(c.workload.single))), Batched: boot.Thousands(float64(r.options.size(c.workload.batched))),
			Plot: c.workload.name == plotted && r.options.out != "",
		}
		for _, row := range c.rows {
			late := slices.ContainsFunc(row.figures, func(f figures) bool { return f.late })
			table.Late = table.Late || late
			table.Rows = append(table.Rows, c.line(row, late))
		}
		v.Throughput = append(v.Throughput, table)
	}
	for _, row := range r.multi {
		rates := row.rates()
		v.Multi = append(v.Multi, cellsOf(row.candidate.name, spread(rates), ratio(median(rates), median(r.multi[0].rates())),
			row.micros(figures.worker), row.micros(figures.redis), row.micros(figures.broker), row.commandsPerHit(), row.rss()))
	}
	var base *row
	for i, row := range r.rules {
		if base == nil || row.candidate.batched != base.candidate.batched {
			base = &r.rules[i]
		}
		rates := row.rates()
		v.Rules = append(v.Rules, cellsOf(row.candidate.name, spread(rates), ratio(median(rates), median(base.rates())),
			row.micros(figures.worker), row.micros(figures.redis), row.micros(figures.broker), row.commandsPerHit(), row.rss()))
	}
	v.Tiers = viewTiers(t, r.tiers)
	for _, l := range r.latency {
		v.Latency = append(v.Latency, cellsOf(l.name, boot.Thousands(l.asked), boot.Thousands(l.reached),
			percentile(l.visible, 50).String(), percentile(l.visible, 99).String(), percentile(l.ping, 50).String(), percentile(l.ping, 99).String(),
			percentile(l.idle, 50).String(), percentile(l.idle, 99).String()))
	}
	for _, rate := range footprintRates {
		v.Rates = append(v.Rates, rate.name)
	}
	for _, f := range r.memory {
		cells := []string{f.name}
		for i, b := range f.bytes {
			text := boot.Thousands(b)
			if first := r.memory[0]; first.ours && f.name != first.name {
				text += fmt.Sprintf(" (%s×)", short(b/first.bytes[i]))
			}
			cells = append(cells, text)
		}
		v.Memory = append(v.Memory, cellsOf(cells...))
	}
	for _, f := range r.queries {
		v.Queries = append(v.Queries, f.view())
	}
	v.Clients, v.Dashboards = r.options.size(dashboardClients), dashboardRows(r.dashboards)
	v.Series = drawingRows(r.series)
	v.Collect = collectRows(r.collect)
	v.Limits = r.limits.view()
	v.Ways = wayRows(r.ways)
	v.Masters = mastersRows(r.masters)
	v.Postgres = r.postgres.view()
	return v
}

// line is a row of a workload's table.
func (c comparison) line(r row, late bool) string {
	rates := r.rates()
	name := r.candidate.name
	if late {
		name += " *"
	}
	// Ratios are to the same form of messages.
	ofCeiling, ofUs := "–", "–"
	for _, other := range c.rows {
		switch {
		case other.candidate.batched != r.candidate.batched:
		case other.candidate.kind == ceiling:
			ofCeiling = ratio(median(rates), median(other.rates()))
		case other.candidate.fresh: // all tiers
			ofUs = ratio(median(rates), median(other.rates()))
		}
	}
	commands := "–"
	if r.candidate.kind != ceiling {
		commands = r.commandsPerHit()
	}
	return cellsOf(name, spread(rates), ofCeiling, ofUs, r.micros(figures.worker), r.micros(figures.redis), r.micros(figures.broker), commands, r.bytesPerCounter(), r.rss())
}

func (f figures) worker() float64 { return f.perHit(f.workerCPU) }
func (f figures) redis() float64  { return f.perHit(f.redisCPU) }
func (f figures) broker() float64 { return f.perHit(f.brokerCPU) }

func (r row) median(of func(figures) float64) float64 {
	values := make([]float64, len(r.figures))
	for i, f := range r.figures {
		values[i] = of(f)
	}
	return median(values)
}

func (r row) rates() []float64 {
	out := make([]float64, len(r.figures))
	for i, f := range r.figures {
		out[i] = f.rate()
	}
	return out
}

func (r row) micros(of func(figures) float64) string { return short(r.median(of)) }

func (r row) commandsPerHit() string {
	return short(r.median(func(f figures) float64 { return float64(f.commands) / float64(f.hits) }))
}

// bytesPerCounter has none if there are too few counters to tell.
func (r row) bytesPerCounter() string {
	if r.figures[0].counters < 1000 {
		return "–"
	}
	return boot.Thousands(r.median(func(f figures) float64 { return float64(f.redisBytes) / float64(f.counters) }))
}

func (r row) rss() string {
	mib := r.median(func(f figures) float64 { return float64(f.workerRSS) / (1 << 20) })
	if mib == 0 {
		return "–" // inside the benchmark's own process
	}
	return fmt.Sprintf("%.0f MiB", mib)
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
