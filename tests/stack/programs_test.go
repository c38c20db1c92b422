package stack

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeProgram is what the test binary does in the place of ingest and query:
// it prints its settings and is ready once it has been asked three times.
func fakeProgram() {
	fmt.Printf("%q\n", os.Environ())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var asked atomic.Int32
	srv := &http.Server{
		Addr: os.Getenv("INGEST_ADDR") + os.Getenv("QUERY_ADDR"),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/readyz" || asked.Add(1) < 3 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}),
	}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	fmt.Println(srv.ListenAndServe())
}

type endpoint string

func (e endpoint) URL() string { return string(e) }

// fakePrograms puts this test binary in the place of the real ones.
func fakePrograms(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	for _, name := range []string{"ingest", "query"} {
		require.NoError(t, os.Symlink(self, filepath.Join(dir, name)))
	}
	t.Setenv("TALLYROLL_BIN", dir)
}

func TestServices(t *testing.T) {
	fakePrograms(t)
	t.Run("ingest", func(t *testing.T) {
		s := Ingest(t, endpoint("nats://n"), endpoint("redis://r"), "FAKE_PROGRAM=1", "SHARDS=4", "REDIS_URL=redis://other")
		for _, want := range []string{`"INGEST_ADDR=` + s.Addr() + `"`, `"NATS_URL=nats://n"`, `"SHARDS=4"`, `"REDIS_URL=redis://other"`} {
			if !strings.Contains(s.Logs(), want) {
				t.Errorf("settings %s, want %s", s.Logs(), want)
			}
		}
		url, pid := s.URL(), s.PID()
		if code := s.Stop(); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
		s.Start()
		if s.URL() != url || s.PID() == pid {
			t.Errorf("started again as %s, process %d; was %s, process %d", s.URL(), s.PID(), url, pid)
		}
	})
	t.Run("query without waiting", func(t *testing.T) {
		s := Query(t, endpoint("redis://r"), "FAKE_PROGRAM=1", NoWait)
		s.WaitReady()
		if strings.Contains(s.Logs(), NoWait) || !strings.Contains(s.Logs(), `"NATS_URL="`) {
			t.Errorf("settings %s", s.Logs())
		}
	})
}

func TestTotals(t *testing.T) {
	const answer = `{"as_of":"2026-11-21T10:00:00.2Z","totals":[{"key":"k","window":"24h","from":"2026-11-20T10:00:00.2Z",
		"to":"2026-11-21T10:00:00.2Z","total":1234,"lower":1229,"upper":1241,"cell":"15m","complete":true}]}`
	var asked string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, r.ContentLength)
		_, _ = r.Body.Read(body)
		asked = r.Method + " " + r.URL.String() + " " + string(body)
		if strings.Contains(asked, "bad") {
			w.WriteHeader(http.StatusBadRequest)
		}
		fmt.Fprint(w, answer)
	}))
	defer srv.Close()

	want := Total{
		Key: "k", Window: "24h", Total: 1234, Lower: 1229, Upper: 1241, Cell: "15m", Complete: true,
		From: time.Date(2026, 11, 20, 10, 0, 0, 2e8, time.UTC), To: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC),
	}
	if got := TotalOf(t, srv.URL, "k", "24h"); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if asked != "GET /v1/total?key=k&window=24h " {
		t.Errorf("asked %s", asked)
	}
	if got := EventuallyTotal(t, srv.URL, "k", "24h", 1234); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got := PostTotal(t, srv.URL, []string{"k"}, []string{"24h"})
	if !got.AsOf.Equal(want.To) || len(got.Totals) != 1 || got.Totals[0] != want {
		t.Errorf("got %+v", got)
	}
	if asked != `POST /v1/total {"keys":["k"],"windows":["24h"]}` {
		t.Errorf("asked %s", asked)
	}
	if said := failing(t, func(t testing.TB) { TotalOf(t, srv.URL, "bad", "1h") }); !strings.Contains(said, "status 400") {
		t.Errorf("said %q, want the status", said)
	}
}
