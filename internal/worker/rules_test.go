package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/rules"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// rulesFile is a file whose one rule counts each event of hits.order.* on the counters of names.
type rulesFile struct {
	t    *testing.T
	path string
}

func newRulesFile(t *testing.T, names ...string) *rulesFile {
	f := &rulesFile{t, filepath.Join(t.TempDir(), "rules.yml")}
	f.write(formatRules(names...))
	return f
}

func formatRules(names ...string) string {
	text := "- stream: HITS\n  subject: hits.order.*\n  count:\n"
	for _, name := range names {
		text += fmt.Sprintf("    - key: %s\n", name)
	}
	return text
}

func (f *rulesFile) write(text string) {
	f.t.Helper()
	require.NoError(f.t, os.WriteFile(f.path, []byte(text), 0o600))
}

func fingerprint(t *testing.T, text string) string {
	t.Helper()
	set, err := rules.Parse([]byte(text))
	require.NoError(t, err)
	return set.Fingerprint()
}

// order publishes an event, which counts by the rules.
func (r *rig) order(id string) {
	r.t.Helper()
	require.NoError(r.t, errOf(r.js.Publish(r.t.Context(), "hits.order.new", fmt.Appendf(nil, `{"id":%q}`, id))))
}

func (r *rig) listRules() []string {
	r.t.Helper()
	kept, err := r.store.Rules.Fingerprints(r.t.Context())
	require.NoError(r.t, err)
	return kept
}

// loseShards lets half of the shards lose what they had, as by a fail-over of their node in a cluster.
func (r *rig) loseShards() {
	r.t.Helper()
	for shard := range testLayout.Shards / 2 {
		for _, key := range stack.Scan(r.t, r.redis.Client(), fmt.Sprintf("test:{%d}:*", shard)) {
			require.NoError(r.t, r.redis.Client().Del(r.t.Context(), key).Err())
		}
	}
}

// A running worker begins a version by what the file says at the signal.
func TestSignalReloadsRulesAndABadFileChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	first, second := formatRules("a.{id}", "all"), formatRules("b.{id}", "all")
	file := newRulesFile(t)
	file.write(first)
	w := r.start("INGEST_RULES=" + file.path)
	r.order("1")
	r.awaitApplied()
	want := map[string]int64{"a.1": 1, "b.1": 0, "all": 1, "order.new": 0}
	r.checkTotals(want)
	require.Equal(t, fmt.Sprintf(`[{"from":1,"subjects":["hits.>"],"rules":%q}]`, fingerprint(t, first)), r.cursor(0).Naming)
	text, _, err := r.store.Rules.Read(t.Context(), fingerprint(t, first))
	require.NoError(t, err)
	require.Equal(t, first, string(text))

	file.write("- stream: [\n")
	w.reload <- syscall.SIGHUP
	r.logs.await(t, "rules not reloaded")
	require.Zero(t, w.metric("last_reload_successful"))
	r.order("2")
	r.awaitApplied()
	want["a.2"], want["all"] = 1, 2
	r.checkTotals(want)

	file.write(second)
	w.reload <- syscall.SIGHUP
	r.logs.await(t, "the rules were changed", `"before":"`+fingerprint(t, first), `"rules":"`+fingerprint(t, second))
	for _, name := range []string{"last_reload_successful", `reloads_total{result="ok",what="rules"}`, `reloads_total{result="failed",what="rules"}`} {
		require.EqualValues(t, 1, w.metric(name), name)
	}
	r.order("3")
	r.awaitApplied()
	want["a.3"], want["b.3"], want["all"] = 0, 1, 3
	r.checkTotals(want)
	require.ElementsMatch(t, []string{fingerprint(t, first), fingerprint(t, second)}, r.listRules())

	// Redis loses the texts, and the worker, which still has them in memory, writes them again.
	require.NoError(t, r.store.Rules.Remove(t.Context(), r.listRules()))
	stack.Eventually(t, "both texts to be back", func() (bool, string) {
		kept := r.listRules()
		return len(kept) == 2, fmt.Sprint(kept)
	})
}

// Messages are read again by the rules of their version, whatever the file says by then, and also by a worker
// without rules.
func TestMessagesAreReadAgainByTheRulesOfTheirVersion(t *testing.T) {
	t.Parallel()
	for name, then := range map[string][]string{"other rules": {"b.{id}"}, "no rules": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.createStream(0)
			const orders = 100
			want := map[string]int64{}
			for i := range orders {
				r.order(fmt.Sprint(i))
				want[fmt.Sprintf("a.%d", i)], want[fmt.Sprintf("c.%d", i)], want[fmt.Sprintf("b.%d", i)] = 1, 1, 0
			}
			w := r.start("INGEST_RULES=" + newRulesFile(t, "a.{id}", "c.{id}").path)
			r.awaitApplied()
			w.stop()
			r.loseShards()
			var env []string
			if then != nil {
				env = []string{"INGEST_RULES=" + newRulesFile(t, then...).path}
			}
			r.start(env...)
			r.awaitApplied()
			r.order("new")
			r.awaitApplied()
			want["a.new"], want["b.new"], want["order.new"] = 0, int64(len(then)), int64(1-len(then))
			r.checkTotals(want)
		})
	}
}

// If the text of the rules is lost by which messages must be read, the stream stands still and reports why.
// It continues when the text is back, or when the messages are gone: then their loss is reported.
func TestStreamWhoseRulesAreLostStandsStillUntilTheyAreBack(t *testing.T) {
	t.Parallel()
	text := formatRules("a.{id}", "c.{id}")
	for _, mended := range []string{"the text is put back", "the messages are purged"} {
		t.Run(mended, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			handle := r.createStream(0)
			began := time.Now()
			const orders = 40
			want := map[string]int64{}
			for i := range orders {
				r.order(fmt.Sprint(i))
				want[fmt.Sprintf("a.%d", i)], want[fmt.Sprintf("c.%d", i)], want[fmt.Sprintf("b.%d", i)] = 1, 1, 0
			}
			w := r.start("INGEST_RULES=" + newRulesFile(t, "a.{id}", "c.{id}").path)
			r.awaitApplied()
			w.stop()
			r.loseShards()
			require.NoError(t, r.store.Rules.Remove(t.Context(), r.listRules()))
			r.start("INGEST_RULES=" + newRulesFile(t, "b.{id}").path)
			r.logs.await(t, "messages 1 to 40", "the rules by which these messages were read first are lost", fingerprint(t, text), "HSET test:rules", "--seq=41")
			if mended == "the text is put back" {
				require.NoError(t, r.redis.Client().HSet(t.Context(), "test:rules", fingerprint(t, text), text).Err())
				r.awaitApplied()
				r.checkTotals(want)
				return
			}
			require.NoError(t, handle.Purge(t.Context()))
			r.awaitApplied()
			lost := 0
			for counter, n := range want {
				got, err := r.reader.Answer(t.Context(), []window.Question{{Counter: counter, Span: window.Between(began.UnixMilli(), window.Now)}})
				require.NoError(t, err)
				a := got.Answers[0]
				if shard := testLayout.ShardOf(window.HashCounter([]byte(counter))); shard < testLayout.Shards/2 {
					n = 0
					lost++
					if a.Complete {
						t.Errorf("%s has lost its hits, and its total is called complete", counter)
					}
				}
				if a.Upper != n {
					t.Errorf("%s has %d hits, want %d", counter, a.Upper, n)
				}
			}
			if lost == 0 {
				t.Error("no counter has lost anything: the test tests nothing")
			}
			r.order("new")
			r.awaitApplied()
			r.checkTotals(map[string]int64{"b.new": 1, "a.new": 0})
		})
	}
}

// Headers reach the rules: a CloudEvent in binary mode is one only by its headers.
func TestHeadersReachTheRules(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	file := newRulesFile(t)
	file.write("- stream: HITS\n  subject: hits.order.*\n  format: cloudevents\n  count:\n    - key: '{type}.{data.id}'\n")
	w := r.start("INGEST_RULES=" + file.path)
	event := func(subject string) {
		t.Helper()
		m := nats.NewMsg(subject)
		m.Data = []byte(`{"id":"7"}`)
		for name, value := range map[string]string{"ce-specversion": "1.0", "ce-type": "made", "ce-source": "/s", "ce-id": "1", "content-type": "application/json"} {
			m.Header.Set(name, value)
		}
		require.NoError(t, errOf(r.js.PublishMsg(t.Context(), m)))
	}
	event("hits.order.new")
	event("hits.other") // no rule says what it counts
	r.awaitApplied()
	r.checkTotals(map[string]int64{"made.7": 1, "other": 0, "order.new": 0})
	require.EqualValues(t, 1, w.metric("rejects_total"))
	r.logs.await(t, `"reason":"no_rule"`)
}

// What cannot be rules ends the start, with a line that names the setting, the file and the line.
func TestBadRulesFileEndsTheStart(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"": "", "bad": "- stream: HITS\n  subjekt: x\n"} {
		path := filepath.Join(t.TempDir(), "rules.yml")
		want := []string{"INGEST_RULES", path, "no such file"}
		if name != "" {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			want[2] = path + ": line 2"
		}
		err := Run(t.Context(), parseSettings(t, "INGEST_RULES="+path), zerolog.Nop(), nil, nil)
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want one line with %q", err, part)
			}
		}
	}
}

// A stream's subjects are edited while half of the shards are behind: what they read
// again keeps its name, also after a crash, and what is new has the new one.
func TestMessagesReadAgainKeepTheNamesOfEditedSubjects(t *testing.T) {
	t.Parallel()
	const messages = 200
	r := newRig(t)
	handle := r.createStream(0)
	for i := range messages {
		require.NoError(t, errOf(r.js.Publish(t.Context(), fmt.Sprintf("hits.shop.%d", i), nil)))
	}
	w := r.start()
	r.awaitApplied()
	w.stop()

	r.loseShards()
	edit := func(subjects ...string) {
		config := handle.CachedInfo().Config
		config.Subjects = subjects
		require.NoError(t, errOf(r.js.UpdateStream(t.Context(), config)))
	}
	edit("hits.shop.>")
	r.start()
	r.awaitApplied()
	require.NoError(t, errOf(r.js.Publish(t.Context(), "hits.shop.new", nil)))
	r.awaitApplied()
	want := map[string]int64{"new": 1, "shop.new": 0}
	for i := range messages {
		want[fmt.Sprintf("shop.%d", i)] = 1
		want[fmt.Sprint(i)] = 0
	}
	r.checkTotals(want)

	// A running worker notices an edit by itself.
	edit("hits.shop.>", "clicks.>")
	r.logs.await(t, "named by them from here on", "clicks.>")
	require.NoError(t, errOf(r.js.Publish(t.Context(), "clicks.a", nil)))
	want["a"], want["clicks.a"] = 1, 0
	r.awaitApplied()
	r.checkTotals(want)
}
