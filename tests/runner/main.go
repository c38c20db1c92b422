// Runner runs commands one after the other and reports what they do, so that nobody watches a silent
// terminal:
//
//	runner -- go build -v ./... -- go test -json ./...
//
// It understands `go build -v` and `go test -json`. It prints a line per tested package, the output of what
// fails, and at least every ten seconds how far it is. At the end it lists the tests that were skipped. It
// runs all tests also if some fail, and then exits with 1; if a build fails, nothing is tested.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

const reportEvery = 10 * time.Second

func main() { os.Exit(run(os.Stdout, os.Args[1:])) }

// run runs the commands and returns the exit code.
func run(out io.Writer, args []string) int {
	r := &report{out: out, began: time.Now(), running: map[test]time.Time{}, output: map[test][]string{}}
	done := make(chan struct{})
	go r.tick(done)
	failed := false
	for command := range commands(args) {
		if err := r.runCommand(command); err != nil {
			failed = true
			r.print("FAILED: %s: %v", strings.Join(command[:min(len(command), 4)], " "), err)
			if slices.Contains(command, "build") {
				break
			}
		}
	}
	close(done)
	r.end()
	if failed || r.failed > 0 {
		return 1
	}
	return 0
}

// commands yields the commands that are separated by "--".
func commands(args []string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(args) > 0 {
			end := slices.Index(args, "--")
			if end < 0 {
				end = len(args)
			}
			if end > 0 && !yield(args[:end]) {
				return
			}
			args = args[min(end+1, len(args)):]
		}
	}
}

// test names a test, or a package if name is empty.
type test struct{ pkg, name string }

func (t test) String() string {
	return strings.TrimSpace(strings.TrimPrefix(t.pkg, "tallyroll/") + " " + t.name)
}

// event is one of `go test -json` (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type report struct {
	out   io.Writer
	began time.Time

	mu             sync.Mutex
	printed        time.Time // when the last line was printed
	built          int       // packages of the build that runs
	building       string
	passed, failed int // tests, without subtests
	skipped        []string
	running        map[test]time.Time
	output         map[test][]string
	failedOutput   []string
}

// runCommand runs a command to its end.
func (r *report) runCommand(command []string) error {
	cmd := exec.Command(command[0], command[1:]...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var reading sync.WaitGroup
	for _, from := range []io.Reader{stdout, stderr} {
		reading.Go(func() {
			lines := bufio.NewReader(from)
			for {
				line, err := lines.ReadString('\n')
				if line != "" {
					r.read(strings.TrimSuffix(line, "\n"))
				}
				if err != nil {
					return
				}
			}
		})
	}
	reading.Wait()
	return cmd.Wait()
}

// read takes a line of a command.
func (r *report) read(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e event
	switch {
	case strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &e) == nil && e.Action != "":
		r.handle(e)
	case line != "" && !strings.ContainsAny(line, " :\t#"): // `go build -v` names each package that it compiles
		r.built++
		r.building = "building " + line
	case strings.HasPrefix(line, "go: downloading "):
		r.building = strings.TrimPrefix(line, "go: ")
	default:
		r.printLocked("%s", line)
	}
}

func (r *report) handle(e event) {
	t := test{e.Package, e.Test}
	switch e.Action {
	case "run", "cont":
		r.running[t] = time.Now()
	case "pause":
		delete(r.running, t)
	case "output", "build-output":
		if e.Test == "" {
			if text := strings.TrimSpace(e.Output); strings.HasPrefix(text, "ok ") || strings.HasPrefix(text, "FAIL\t") {
				r.printLocked("%s", strings.ReplaceAll(text, "\t", " "))
				return
			}
		}
		r.output[t] = append(r.output[t], e.Output)
	case "pass", "fail", "skip":
		delete(r.running, t)
		if e.Action == "fail" && e.Test == "" {
			r.printRest(e.Package)
		}
		text := strings.Join(r.output[t], "")
		delete(r.output, t)
		switch {
		case e.Action == "fail" && text != "PASS\n" && text != "FAIL\n":
			r.printLocked("--- FAIL: %v\n%s", t, text)
			r.failedOutput = append(r.failedOutput, t.String())
		case e.Action == "skip" && e.Test != "":
			r.skipped = append(r.skipped, t.String()+": "+reason(text))
		}
		if e.Test != "" && !strings.Contains(e.Test, "/") {
			switch e.Action {
			case "pass":
				r.passed++
			case "fail":
				r.failed++
			}
		}
	}
}

// printRest prints what the tests of a failed package have written that have not ended: its process did, as
// in a panic.
func (r *report) printRest(pkg string) {
	for t, lines := range r.output {
		if t.pkg == pkg && t.name != "" {
			r.printLocked("--- NOT ENDED: %v\n%s", t, strings.Join(lines, ""))
			r.failedOutput = append(r.failedOutput, t.String())
			delete(r.output, t)
			delete(r.running, t)
		}
	}
}

// reason is why a test was skipped: the last line that it logged.
func reason(output string) string {
	var last string
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "===") {
			last = line
		}
	}
	return last
}

func (r *report) print(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.printLocked(format, args...)
}

func (r *report) printLocked(format string, args ...any) {
	r.printed = time.Now()
	fmt.Fprintf(r.out, format+"\n", args...)
}

// tick reports how far it is whenever nothing was printed for reportEvery.
func (r *report) tick(done <-chan struct{}) {
	ticker := time.NewTicker(reportEvery / 4)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			r.mu.Lock()
			if time.Since(r.printed) > reportEvery-reportEvery/4 {
				r.printLocked("%5.0f s: %s", time.Since(r.began).Seconds(), r.progress(time.Now()))
			}
			r.mu.Unlock()
		}
	}
}

func (r *report) progress(now time.Time) string {
	if r.passed+r.failed+len(r.running) == 0 {
		return fmt.Sprintf("%d packages built, now %s", r.built, cmp.Or(r.building, "linking what was built before"))
	}
	var tests []test
	for t := range r.running {
		if t.name != "" && !strings.Contains(t.name, "/") {
			tests = append(tests, t)
		}
	}
	slices.SortFunc(tests, func(a, b test) int { return r.running[a].Compare(r.running[b]) })
	var names []string
	for _, t := range tests[:min(len(tests), 3)] {
		names = append(names, fmt.Sprintf("%v (%.0f s)", t, now.Sub(r.running[t]).Seconds()))
	}
	if len(names) == 0 {
		names = []string{cmp.Or(r.building, "building the tests")}
	}
	return fmt.Sprintf("%d tests passed, %d failed, %d run: %s", r.passed, r.failed, len(tests), strings.Join(names, ", "))
}

// end prints what was skipped, and the sums.
func (r *report) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range r.skipped {
		r.printLocked("SKIPPED: %s", text)
	}
	for _, name := range r.failedOutput {
		r.printLocked("FAILED: %s", name)
	}
	if r.passed+r.failed > 0 {
		r.printLocked("%d passed, %d failed, %d skipped, in %.0f s", r.passed, r.failed, len(r.skipped), time.Since(r.began).Seconds())
	}
}
