package consume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/buildinfo"
	"tallyroll/internal/source"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// A text is removed once no cursor has named it in two checks, and not before.
func TestRulesAreSwept(t *testing.T) {
	t.Parallel()
	js := stack.NATS(t).JetStream()
	require.NoError(t, errOf(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}})))
	file := filepath.Join(t.TempDir(), "rules.yml")
	require.NoError(t, os.WriteFile(file, []byte("- stream: HITS\n  subject: hits.order.*\n  count:\n    - key: a.{id}\n"), 0o600))
	log, metrics := zerolog.New(zerolog.NewTestWriter(t)), NewMetrics(prometheus.NewRegistry())
	book, err := OpenRulebook(file, func(string) bool { return true }, metrics, buildinfo.NewFiles(prometheus.NewRegistry(), log), log)
	require.NoError(t, err)
	store := schema.NewStore(stack.Redis(t).Client(), "test")
	keeper := NewKeeper(Config{Store: store, Layout: testLayout, Limits: benchLimits, Metrics: metrics, Waits: NewWaits(), Rules: book, Log: log})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		keeper.Keep(ctx, "HITS", func(bool) {}, func(bytes int) source.Stream { return source.New(js, "test", "HITS", bytes) })
	}()
	require.NoError(t, errOf(js.Publish(t.Context(), "hits.order.new", []byte(`{"id":"1"}`))))
	stack.Eventually(t, "every cursor to be at the message", func() (bool, string) {
		cursors, err := readCursors(t.Context(), store, testLayout, "HITS")
		return err == nil && !slices.ContainsFunc(cursors, func(c window.Cursor) bool { return c.Seq != 1 }), fmt.Sprintf("%+v %v", cursors, err)
	})
	stop()
	<-ended

	keep := func(texts map[string][]byte) {
		t.Helper()
		require.NoError(t, store.Rules.Keep(t.Context(), texts))
	}
	keep(map[string][]byte{"00": []byte("x"), "01": []byte("y")})
	s := &sweeper{layout: testLayout, store: store, log: log}
	sweep := func(want ...string) {
		t.Helper()
		require.NoError(t, s.sweep(t.Context()))
		want = append(want, book.Current().Fingerprint())
		slices.Sort(want)
		kept, err := store.Rules.Fingerprints(t.Context())
		if slices.Sort(kept); err != nil || !slices.Equal(kept, want) {
			t.Errorf("Redis keeps the rules %v, %v, want %v", kept, err, want)
		}
	}
	sweep("00", "01")
	keep(map[string][]byte{"02": []byte("z")})
	sweep("02")
	sweep()
	sweep()
}
