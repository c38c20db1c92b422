package e2e_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// What make run starts: it prints lines to paste, they work, and Ctrl-C leaves nothing behind.
func TestDevRunsEverything(t *testing.T) {
	tmp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), stack.Build(t, "dev"))
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url := regexp.MustCompile(`query +(http://\S+)/docs`)
	var query string
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "Ctrl-C") {
		if m := url.FindStringSubmatch(lines.Text()); m != nil {
			query = m[1]
		}
	}
	if query == "" {
		t.Fatal("dev has printed no address of the query service")
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()

	var first int64
	stack.Eventually(t, 15*time.Second, "the load to be counted", func() (bool, string) {
		total, _, err := stack.FetchTotal(query, "/home", "1m")
		first = total.Total
		return err == nil && first > 0, total.Key
	})
	stack.Eventually(t, 15*time.Second, "the total to grow", func() (bool, string) {
		total, _, err := stack.FetchTotal(query, "/home", "1m")
		return err == nil && total.Total > first, total.Key
	})

	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("dev ends with %v", err)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("dev leaves %v behind, %v", left, err)
	}
}
