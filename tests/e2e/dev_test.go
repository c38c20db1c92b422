package e2e_test

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

var queryLine = regexp.MustCompile(`(?m)^ *query +(http://\S+)/docs`)

// startDev starts what `make run` starts, and returns what it prints, up to the line about how to end it.
// stop ends it, which leaves nothing behind, and returns its log.
func startDev(t *testing.T, args []string, env ...string) (printed, query string, stop func() (log string)) {
	t.Helper()
	tmp := t.TempDir()
	cmd := stack.Command(t.Context(), t, "dev", args, append(env, "TMPDIR="+tmp))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var log bytes.Buffer
	cmd.Stderr = io.MultiWriter(os.Stderr, &log)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "Ctrl-C") {
		printed += lines.Text() + "\n"
	}
	found := queryLine.FindStringSubmatch(printed)
	require.NotNil(t, found, "dev has printed no address of the query service: %s", printed)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, out)
	}()
	return printed, found[1], func() string {
		t.Helper()
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		<-drained
		require.NoError(t, cmd.Wait())
		left, err := os.ReadDir(tmp)
		require.NoError(t, err)
		require.Empty(t, left)
		return log.String()
	}
}

// What make run starts: it prints lines to paste, they work, and Ctrl-C leaves nothing behind.
func TestDevRunsEverything(t *testing.T) {
	t.Parallel()
	printed, query, stop := startDev(t, nil)
	if first := printed[:strings.Index(printed, "http://")]; strings.TrimSpace(first[strings.LastIndexByte(first, '\n')+1:]) != "page" {
		t.Errorf("the first address is not the page's: %s", printed)
	}
	counted := map[string]int64{}
	for _, key := range []string{"/home", "/home", "checkout", "shop.eu.checkout", "visitors"} { // docs/queries.md asks about these
		stack.Eventually(t, "the total of "+key+" to grow", func() (bool, string) {
			total, _, err := stack.FetchTotal(query, key, "1m")
			grown := err == nil && total.Total > counted[key]
			if grown {
				counted[key] = total.Total
			}
			return grown, total.Key
		})
	}
	eventuallySays(t, query+"/v1/watch?state=firing", http.StatusOK, `"rule":"home-is-busy"`)
	pasted := regexp.MustCompile(`(?m)^.*curl .*$`).FindAllString(printed, -1)
	require.Len(t, pasted, 4)
	for i, line := range pasted {
		answer, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput()
		if err != nil || !strings.Contains(string(answer), []string{`"total":`, "200 200 200 200 200 429"}[i/3]) {
			t.Errorf("%s: %v\n%s", line, err, answer)
		}
	}
	eventuallySays(t, query+"/v1/top?prefix=usage.api.&window=5m", http.StatusOK, `"usage.api.client-0"`)
	eventuallySays(t, query+"/v1/top?prefix=sum.&window=5m", http.StatusOK, `"sum.usage.api"`)
	stop()

	// Not in parallel: of two that start at once, one may take a port that the other has found free.
	t.Run("without redis-server, questions for unique values are refused, and nothing is warned about", func(t *testing.T) {
		_, query, stop := startDev(t, []string{"--no-load"}, "PATH="+t.TempDir())
		eventuallySays(t, query+"/v1/uniques?key=a&window=1h", http.StatusBadRequest, "its stand-in for Redis cannot count them")
		require.Empty(t, stop())
	})
}
