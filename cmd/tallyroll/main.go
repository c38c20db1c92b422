// Tallyroll is the entry point of the container image, which has no shell, and the command of the Debian
// package: it becomes the program in its first argument, or lists the programs.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"tallyroll/internal/platform/release"
	"tallyroll/internal/platform/setting"
)

const usage = `tallyroll: exact rolling-window counters, from NATS JetStream into Redis. Name a program:

  ingest    counts the hits of JetStream streams into Redis; run as many as you need
  query     answers questions about counters over HTTP
  collect   takes hits over HTTP and publishes them to NATS JetStream
  promql    answers PromQL about counters, for Grafana's built-in Prometheus data source
  rls       answers Envoy's global rate limit protocol, from the limits of a file
  watch     compares counters with thresholds, and delivers each change to webhooks, Alertmanager or NATS
  publish   reads hits from logs or standard input, or generates a load, and publishes them
  redrive   publishes again what workers have rejected
  audit     counts the streams again, and compares that with every cell in Redis
  dev       runs all of it in one process, with NATS, a Redis and a small load, to try it

  tallyroll ingest --help                  its settings, which are environment variables
  docker run --rm IMAGE ingest --help      the same, of the image

deploy/compose.yml of the sources starts all of it, with NATS and Redis.
`

func main() {
	os.Exit(run(os.Args, os.Stdout, os.Stderr, become))
}

// run returns only if it does not become a program.
func run(args []string, stdout, stderr io.Writer, become func(name string, args []string) error) int {
	if len(args) < 2 {
		fmt.Fprint(stdout, usage)
		return setting.ExitUsage
	}
	switch name := filepath.Base(args[1]); name {
	case "ingest", "query", "collect", "promql", "rls", "watch", "publish", "redrive", "audit", "dev":
		if err := become(name, args[1:]); err != nil {
			fmt.Fprintf(stderr, "tallyroll: %v\n", err)
			return setting.ExitFailure
		}
	case "--help", "-help", "-h", "help":
		fmt.Fprint(stdout, usage)
	case "--version", "-version", "version":
		fmt.Fprintln(stdout, "tallyroll", release.Version())
	default:
		fmt.Fprintf(stderr, "tallyroll: no program %q: must be ingest, query, collect, promql, rls, watch, publish, "+
			"redrive, audit or dev\n", args[1])
		return setting.ExitUsage
	}
	return setting.ExitOK
}

// become replaces this process with the program in the same directory. args begin with its name.
func become(name string, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if resolved, err := filepath.EvalSymlinks(self); err == nil { // a package has a link on the PATH
		self = resolved
	}
	if name == "dev" && filepath.Dir(self) == "/" { // of the image, where /dev has devices
		name = "tallyroll-dev"
	}
	path := filepath.Join(filepath.Dir(self), name)
	if err := syscall.Exec(path, args, os.Environ()); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	return nil
}
