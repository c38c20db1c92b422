package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// events prints what `go test -json` prints of a package with a test of each outcome.
const events = `cat <<'EOF'
{"Action":"run","Package":"tallyroll/a","Test":"TestGood"}
{"Action":"pass","Package":"tallyroll/a","Test":"TestGood"}
{"Action":"run","Package":"tallyroll/a","Test":"TestBad"}
{"Action":"output","Package":"tallyroll/a","Test":"TestBad","Output":"    a_test.go:1: 1, want 2\n"}
{"Action":"fail","Package":"tallyroll/a","Test":"TestBad"}
{"Action":"run","Package":"tallyroll/a","Test":"TestSkipped"}
{"Action":"output","Package":"tallyroll/a","Test":"TestSkipped","Output":"    a_test.go:2: no initdb here\n"}
{"Action":"skip","Package":"tallyroll/a","Test":"TestSkipped"}
{"Action":"run","Package":"tallyroll/a","Test":"TestPanics"}
{"Action":"output","Package":"tallyroll/a","Test":"TestPanics","Output":"panic: lost\n"}
{"Action":"output","Package":"tallyroll/a","Output":"FAIL\ttallyroll/a\t0.1s\n"}
{"Action":"fail","Package":"tallyroll/a"}
EOF
exit 1`

func TestReportNamesFailuresAndSkips(t *testing.T) {
	var out bytes.Buffer
	code := run(&out, []string{"--", "sh", "-c", events, "--", "echo", "more text: printed as it is"})
	for _, want := range []string{
		"--- FAIL: a TestBad\n    a_test.go:1: 1, want 2\n", "--- NOT ENDED: a TestPanics\npanic: lost\n", "FAIL tallyroll/a 0.1s", "more text: printed as it is",
		"SKIPPED: a TestSkipped: a_test.go:2: no initdb here\n", "FAILED: a TestBad\n", "1 passed, 1 failed, 1 skipped",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if code != 1 || t.Failed() {
		t.Errorf("exit code %d, want 1:\n%s", code, out.String())
	}
}

func TestNothingIsTestedAfterAFailedBuild(t *testing.T) {
	var out bytes.Buffer
	if code := run(&out, []string{"sh", "-c", "exit 3", "build", "--", "echo", "tested"}); code != 1 || strings.Contains(out.String(), "tested\n") {
		t.Errorf("exit code %d:\n%s", code, out.String())
	}
}

func TestProgressNamesWhatRuns(t *testing.T) {
	now := time.Now()
	r := &report{running: map[test]time.Time{{"tallyroll/a", "TestSlow"}: now.Add(-time.Minute)}, passed: 3}
	if got, want := r.progress(now), "3 tests passed, 0 failed, 1 run: a TestSlow (60 s)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r = &report{built: 5, building: "building tallyroll/internal/hit"}
	if got, want := r.progress(now), "5 packages built, now building tallyroll/internal/hit"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
