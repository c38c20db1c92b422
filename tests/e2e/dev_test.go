package e2e_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// What make run starts: it prints lines to paste, they work, and Ctrl-C leaves nothing behind.
func TestDevRunsEverything(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	cmd := stack.Command(t.Context(), t, "dev", nil, []string{"TMPDIR=" + tmp})
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	url := regexp.MustCompile(`query +(http://\S+)/docs`)
	var query, first string
	var pasted []string
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "Ctrl-C") {
		if first == "" && strings.Contains(lines.Text(), "http://") {
			first = strings.TrimSpace(lines.Text())
		}
		if m := url.FindStringSubmatch(lines.Text()); m != nil {
			query = m[1]
		}
		if line := strings.TrimSpace(lines.Text()); strings.Contains(line, "curl ") {
			pasted = append(pasted, line)
		}
	}
	if query == "" {
		t.Fatal("dev has printed no address of the query service")
	}
	if want := regexp.MustCompile(`^page +` + regexp.QuoteMeta(query) + `/$`); !want.MatchString(first) {
		t.Errorf("the first address is not the page's: %s", first)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()

	var counted int64
	stack.Eventually(t, "the load to be counted", func() (bool, string) {
		total, _, err := stack.FetchTotal(query, "/home", "1m")
		counted = total.Total
		return err == nil && counted > 0, total.Key
	})
	stack.Eventually(t, "the total to grow", func() (bool, string) {
		total, _, err := stack.FetchTotal(query, "/home", "1m")
		return err == nil && total.Total > counted, total.Key
	})

	stack.Eventually(t, "a rule to fire", func() (bool, string) {
		status, body, err := stack.Do(http.MethodGet, query+"/v1/watch?state=firing", nil)
		return err == nil && status == http.StatusOK && strings.Contains(string(body), `"rule":"home-is-busy"`), string(body)
	})

	if len(pasted) != 3 {
		t.Errorf("%d lines to paste: %q", len(pasted), pasted)
	}
	for _, line := range pasted {
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute) // go run compiles, perhaps everything for the first time
		shell := exec.CommandContext(ctx, "sh", "-c", line)
		shell.Dir, shell.WaitDelay = "../..", time.Second
		said, err := shell.CombinedOutput()
		cancel()
		if err != nil || !strings.Contains(string(said), `"total":`) {
			t.Errorf("%s: %v\n%s", line, err, said)
		}
	}

	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err != nil {
		t.Errorf("dev ends with %v", err)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("dev leaves %v behind, %v", left, err)
	}
}

// Without redis-server, make run counts no unique values, and whoever asks for them is told why.
func TestDevWithoutRedisRefusesUniques(t *testing.T) {
	t.Parallel()
	cmd := stack.Command(t.Context(), t, "dev", []string{"--no-load"}, []string{"TMPDIR=" + t.TempDir(), "PATH=" + t.TempDir()})
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	query := ""
	for lines := bufio.NewScanner(out); lines.Scan() && !strings.HasPrefix(lines.Text(), "Ctrl-C"); {
		if url, found := strings.CutSuffix(lines.Text(), "/docs"); found {
			query = url[strings.Index(url, "http://"):]
		}
	}
	for _, target := range []string{"/v1/uniques?key=a&window=1h", "/v1/series?key=a&of=uniques"} {
		status, body, err := stack.Do(http.MethodGet, query+target, nil)
		if err != nil || status != http.StatusBadRequest || !strings.Contains(string(body), "its stand-in for Redis cannot count them") {
			t.Errorf("%s: status %d, %s, %v", target, status, body, err)
		}
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err != nil {
		t.Errorf("dev ends with %v", err)
	}
}
