package commit_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

// Redis is killed at each command of a transaction that folds a log. Its next start runs nothing of that, and
// the one after it runs the piece, then the repeated transaction. No hit is lost; at most those of the log
// and of the load count twice, and the cursor shows it.
func TestTornFoldLosesNoHit(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t, stack.RedisArgs("--appendfsync", "always"))
	if server.IsValkey() {
		t.Skip("it cuts what is torn off at its start")
	}
	r := &rig{windowtest.NewRig(t, windowtest.NewBackend(server.Client()))}
	r.WithLogs(foldedAt)
	now, s, n := time.Now(), r.Open("HITS"), int64(0)
	file := func() string {
		files, err := filepath.Glob(filepath.Join(server.Dir(), "appendonlydir", "*.incr.aof"))
		require.NoError(t, err)
		return slices.Max(files)
	}
	load := func() {
		require.Nil(t, s.Commit("a", now.Add(time.Duration(n-60)*time.Second), 1).Failed)
		n++
	}
	var before, all []byte
	for len(stack.Scan(t, r.Client, "test:*:h:*:a")) == 0 {
		var err error
		before, err = os.ReadFile(file())
		require.NoError(t, err)
		load()
		all, err = os.ReadFile(file())
		require.NoError(t, err)
	}
	server.Kill()
	aof, fold := file(), all[len(before):]
	cuts := 0
	for at := 0; ; cuts++ {
		next := bytes.Index(fold[at+1:], []byte("\r\n*"))
		if next < 0 {
			break // inside EXEC
		}
		at += 1 + next
		require.NoError(t, os.WriteFile(aof, slices.Concat(before, fold[:at+6]), 0o600))
		server.Start()
		s = r.Open("HITS")
		n--
		load()
		require.Equal(t, n, r.Total("a", 32*24*time.Hour, now).Upper, "%q: first start", fold[:at])
		server.Kill()
		server.Start()
		for _, length := range []time.Duration{24 * time.Hour, 32 * 24 * time.Hour} {
			got := r.Total("a", length, now).Upper
			require.GreaterOrEqual(t, got, n, "%q: hits are lost in %s", fold[:at], length)
			require.LessOrEqual(t, got, 2*n, "%q", fold[:at])
		}
		s = r.Open("HITS")
		s.Commit("a", now, 1)
		cursor, _ := s.Of("a").Cursor()
		require.Equal(t, bytes.Contains(fold[:at], []byte("opened")), cursor.IncompleteBefore > 0, "%q", fold[:at])
		server.Kill()
	}
	require.Greater(t, cuts, 20)
	server.Start()
}
