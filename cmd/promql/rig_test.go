package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window/commit"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/setting"
	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

const namespace = "test"

// counted are n hits of a counter at a moment.
type counted struct {
	key string
	at  time.Time
	n   int64
}

// seed counts hits as a worker would that has counted for ten days, up to asOf.
func seed(t testing.TB, client redis.UniversalClient, asOf time.Time, hits ...counted) {
	t.Helper()
	seedFrom(t, client, newCursor(asOf.Add(-240*time.Hour), asOf), hits...)
}

// newCursor returns the cursor of a stream that began at a moment and is counted up to asOf.
func newCursor(began, asOf time.Time) window.Cursor {
	return window.Cursor{Created: began.UnixNano(), Seq: 1, Stored: asOf.UnixNano(), AsOf: asOf.UnixMilli()}
}

func seedFrom(t testing.TB, client redis.UniversalClient, cursor window.Cursor, hits ...counted) {
	t.Helper()
	tiers, err := window.ParseTiers(window.DefaultTiers)
	require.NoError(t, err)
	layout := window.Layout{Tiers: tiers, UniqueTiers: uniqueTiers(t), Shards: 4}
	ctx, store := t.Context(), schema.NewStore(client, namespace)
	require.NoError(t, store.EnsureLayout(ctx, layout))
	require.NoError(t, store.AddStream(ctx, "HITS"))
	batch := window.NewBatch(layout)
	for _, h := range hits {
		batch.Add([]byte(h.key), window.HashCounter([]byte(h.key)), h.at.UnixMilli(), cursor.AsOf, h.n)
	}
	for shard := range layout.Shards {
		w, err := commit.OpenWriter(ctx, store, layout, "HITS", shard)
		require.NoError(t, err)
		if _, err := w.Commit(ctx, batch.Shard(shard), cursor); err != nil {
			t.Fatal(err)
		}
	}
}

func uniqueTiers(t testing.TB) window.Tiers {
	t.Helper()
	tiers, err := window.ParseUniqueTiers(window.DefaultUniqueTiers)
	require.NoError(t, err)
	return tiers
}

// seedUniques adds unique values of a counter to the unique cells of a moment, as a worker does.
func seedUniques(t testing.TB, client redis.UniversalClient, key string, at time.Time, who ...string) {
	t.Helper()
	shard := window.Layout{Shards: 4}.ShardOf(window.HashCounter([]byte(key)))
	args := make([]any, len(who))
	for i, w := range who {
		args[i] = unique.Of([]byte(w)).Argument()
	}
	for _, tier := range uniqueTiers(t) {
		cell := fmt.Sprintf("%s:{%d}:u:%s:%d:%s", namespace, shard, human.FormatDuration(tier.Cell), at.UnixMilli()/tier.Cell.Milliseconds(), key)
		require.NoError(t, client.PFAdd(t.Context(), cell, args...).Err())
	}
}

// start runs the program against a Redis.
func start(t testing.TB, redis stack.Endpoint, env ...string) *stack.Service {
	t.Helper()
	return stack.PromQL(t, redis, append([]string{"TALLYROLL_NAMESPACE=" + namespace}, env...)...)
}

// newTestService returns the program's service in this process, with changed default settings.
func newTestService(t testing.TB, redis stack.Endpoint, change func(*Settings)) *service {
	t.Helper()
	var settings Settings
	require.NoError(t, setting.Parse(&settings, "REDIS_URL="+redis.URL(), "TALLYROLL_NAMESPACE="+namespace))
	change(&settings)
	s, err := newService(read.NewReader(schema.NewStore(stack.ProgramClient(t, redis.URL()), namespace)), settings, zerolog.Nop())
	require.NoError(t, err)
	return s
}

// peakMemory returns the peak memory of a process, in bytes.
func peakMemory(t testing.TB, pid int) int64 {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux reports the peak memory of a process")
	}
	_, after, _ := strings.Cut(readFile(t, fmt.Sprintf("/proc/%d/status", pid)), "VmHWM:")
	text, _, _ := strings.Cut(after, "kB")
	kB, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	require.NoError(t, err)
	return kB << 10
}

// newClient returns Prometheus's own client.
func newClient(t testing.TB, s *stack.Service) v1.API {
	t.Helper()
	client, err := api.NewClient(api.Config{Address: s.URL()})
	require.NoError(t, err)
	return v1.NewAPI(client)
}

// apiAnswer is an answer of the API.
type apiAnswer struct {
	Status    string
	ErrorType string
	Error     string
	Data      json.RawMessage
	Warnings  []string
	Infos     []string
}

// get requests a path below /api/v1.
func get(t testing.TB, s *stack.Service, path string, params url.Values) (int, apiAnswer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/api/v1/"+path+"?"+params.Encode(), nil)
	require.NoError(t, err)
	return send(t, req)
}

// post sends a form, which may be longer than a URL.
func post(t testing.TB, s *stack.Service, path string, params url.Values) (int, apiAnswer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+"/api/v1/"+path, strings.NewReader(params.Encode()))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return send(t, req)
}

func send(t testing.TB, req *http.Request) (int, apiAnswer) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	var out apiAnswer
	require.NoErrorf(t, json.Unmarshal(text, &out), "%s: %d %s", req.URL, resp.StatusCode, text)
	return resp.StatusCode, out
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}
