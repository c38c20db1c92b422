package faults_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A worker whose wall clock is an hour off counts the same. The worker is built
// with a changed time.Now: Go does not ask the C library for the time, so
// libfaketime cannot move its clock.
func TestWorkerClockIsWrong(t *testing.T) {
	if !full() {
		t.Skip("builds the worker and the standard library anew, so with FAULTS=full only")
	}
	t.Setenv("TALLYROLL_BIN", wrongClock(t))
	for _, offset := range []string{"ahead", "behind"} {
		t.Run(offset, func(t *testing.T) {
			s := start(t, "CLOCK_OFFSET="+offset)
			l := startLoad(s, "c", false, 1000)
			s.progress(l)
			if !strings.Contains(s.workers[0].Logs(), map[string]string{
				"ahead":  time.Now().UTC().Add(time.Hour).Format("2006-01-02T15"),
				"behind": time.Now().UTC().Add(-time.Hour).Format("2006-01-02T15"),
			}[offset]) {
				t.Fatalf("its clock is right:\n%s", s.workers[0].Logs())
			}
			s.workers[0].Kill()
			s.workers[0].Start()
			s.flushAll()
			s.settled(l, 2)
		})
	}
}

// wrongClock builds the programs with a clock that CLOCK_OFFSET moves.
func wrongClock(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	const reads = "sec, nsec, mono := runtimeNow()\n" // of time.Now
	changed := strings.Replace(string(text), reads, reads+"\tsec += clockOffset\n", 1)
	changed = strings.Replace(changed, "import (", "import (\n\t\"syscall\"", 1) + `
var clockOffset = func() int64 {
	switch v, _ := syscall.Getenv("CLOCK_OFFSET"); v {
	case "ahead":
		return 3600
	case "behind":
		return -3600
	}
	return 0
}()
`
	if !strings.Contains(changed, "sec += clockOffset") {
		t.Fatalf("%s reads the clock in another way now", source)
	}
	copied, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {source: copied}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ingest", "query"} {
		out, err := exec.Command("go", "build", "-overlay", overlay, "-o", filepath.Join(dir, name), "tallyroll/cmd/"+name).CombinedOutput()
		if err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return dir
}
