package e2e_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// rejectsHeld is how many messages HITS_REJECTED holds.
func (s *system) rejectsHeld() uint64 {
	s.t.Helper()
	stream, err := s.js.Stream(s.t.Context(), "HITS_REJECTED")
	require.NoError(s.t, err)
	return stream.CachedInfo().State.Msgs
}

// wantLine checks that the last line of a run begins and goes on as it should.
func (s *system) wantLine(line, head string, more ...string) {
	s.t.Helper()
	last := line[strings.LastIndexByte(strings.TrimSpace(line), '\n')+1:]
	if !strings.HasPrefix(last, head) {
		s.t.Errorf("%q does not begin with %q", last, head)
	}
	for _, m := range more {
		if !strings.Contains(last, m) {
			s.t.Errorf("%q does not say %q", last, m)
		}
	}
}

func TestRejectsAreCountedAfterAll(t *testing.T) {
	t.Parallel()
	s := start(t)
	now := time.Now()
	s.wantLine(s.redrive(), "found 0 rejects, 0 match; sent 0 again in 0 messages in ", "; left 0")
	old, ahead := now.AddDate(-1, 0, 0).UnixMilli(), now.Add(time.Hour).UnixMilli()
	s.send("hits.of.subject", fmt.Sprintf("{\"key\":\"late\",\"n\":3,\"ts\":%d}\n{\"ts\":%d}\n{\"key\":\"good\"}", old, old))
	s.send("hits.x", fmt.Sprintf(`[{"key":"future","n":5,"ts":%d},{"key":""}]`, ahead))
	s.rejects(4)

	s.wantLine(s.redrive("--reason", "future", "--ts", "stored", "--dry-run"), "found 4 rejects, 1 match; would send 1 again; left 0")
	s.wantLine(s.redrive("--reason", "too_late"), "found 4 rejects, 2 match; sent 2 again in 2 messages in ")
	s.wantLine(s.redrive("--stream", "HITS_7"), "found 0 rejects, 0 match; ")
	held := func(want uint64) {
		t.Helper()
		stack.Eventually(t, fmt.Sprintf("%d rejects", want), func() (bool, string) {
			n := s.rejectsHeld()
			return n == want, fmt.Sprint(n)
		})
	}
	held(4) // refused again, because nothing has changed
	s.wantLine(s.redrive("--ts", "now"), "found 4 rejects, 4 match; sent 3 again in ", "; left 1: 1 bad_key (would be refused")
	total := func(key string, want int64) {
		t.Helper()
		stack.EventuallyTotal(t, s.query.URL(), key, "24h", want)
	}
	total("late", 3)
	total("of.subject", 1)
	total("future", 5)
	held(1) // bad_key

	s.wantLine(s.redrive("--ts", "now"), "found 1 rejects, 1 match; sent 0 again in 0 messages in ", "; left 1: ")
	s.wantLine(s.redrive("--reason", "bad_key"), "found 1 rejects, 1 match; sent 1 again in 1 messages in ")
	held(1)

	// A worker that counts everything again refuses the same hits again; they are sent, and are there already.
	s.ingest.Stop()
	stream, err := s.js.Stream(t.Context(), "HITS_REJECTED")
	require.NoError(t, err)
	require.NoError(t, s.js.DeleteStream(t.Context(), stream.CachedInfo().Config.Name))
	require.NoError(t, s.redis.Client().FlushAll(t.Context()).Err())
	s.wantLine(s.redrive(), "no stream HITS_REJECTED")
	s.ingest.Start()
	total("future", 5)
	s.send("hits.last", "")
	total("last", 1)
	again := s.redrive("--reason", "too_late,future", "--ts", "now")
	// Sent by the first run without --ts, and refused: of these two, too, the first refusal has been sent.
	s.wantLine(again, "found ", "sent 0 again in ", ", 5 had been sent before; left 0")
	for key, want := range map[string]int64{"late": 3, "of.subject": 1, "future": 5} {
		total(key, want)
	}
}

// Two fleets count one stream, with other settings: one refuses what the other counts. Each sees and sends again its
// own rejects alone, and what one sends again does not count in the other, which has counted it.
func TestRejectsBelongToTheirNamespace(t *testing.T) {
	t.Parallel()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATS(t)}
	s.js = s.nats.JetStream()
	type fleet struct {
		namespace     string
		ingest, query *stack.Service
	}
	start := func(namespace string, env ...string) fleet {
		name := "TALLYROLL_NAMESPACE=" + namespace
		return fleet{namespace, stack.Ingest(t, s.nats, s.redis, append(env, name)...), stack.Query(t, s.redis, "NATS_URL="+s.nats.URL(), name)}
	}
	strict, lax := start("tallyroll"), start("shop.eu", "INGEST_MAX_AHEAD=2h")
	now := time.Now()
	s.send("hits.x", fmt.Sprintf(`[{"key":"future","n":5,"ts":%d},{"key":"late","ts":%d},{"key":""}]`, now.Add(time.Hour).UnixMilli(), now.AddDate(-1, 0, 0).UnixMilli()))
	rejects := func(f fleet, want uint64) {
		t.Helper()
		got := eventuallyAnswers(t, f.query.URL()+"/v1/rejects", fmt.Sprintf("%d rejects of %s", want, f.namespace), func(a rejectsAnswer) bool {
			return a.Stored == want && uint64(len(a.Rejects)) == want
		})
		eventuallyAnswers(t, f.query.URL()+"/v1/streams", fmt.Sprintf("%d rejects of the stream of %s", want, f.namespace), func(a streamsAnswer) bool {
			return len(a.Streams) == 1 && a.Streams[0].Rejects == want
		})
		t.Logf("%s: %+v", f.namespace, got.Reasons)
	}
	counted := func(when string, f fleet, future, late int64) {
		t.Helper()
		s.send("hits.after."+when, "") // when it counts, whatever was stored before it does
		stack.EventuallyTotal(t, f.query.URL(), "after."+when, "24h", 1)
		for key, want := range map[string]int64{"future": future, "late": late} {
			stack.EventuallyTotal(t, f.query.URL(), key, "24h", want)
		}
	}
	rejects(strict, 3)
	rejects(lax, 2)
	counted("refused", strict, 0, 0)
	counted("counted", lax, 5, 0)

	const all = "future,too_late,bad_key"
	s.wantLine(s.oneShot("redrive", "shop", nil), "found 0 rejects, 0 match; ")
	s.wantLine(s.oneShot("redrive", "tallyroll", nil, "--reason", all, "--ts", "stored"), "found 3 rejects, 3 match; sent 3 again in 3 messages ")
	counted("sent-by-one", strict, 5, 1)
	counted("and-skipped", lax, 5, 0)
	rejects(strict, 1) // refused again
	rejects(lax, 2)
	s.wantLine(s.oneShot("redrive", "shop.eu", nil, "--reason", all, "--ts", "stored"), "found 2 rejects, 2 match; sent 2 again in 2 messages ")
	counted("sent-by-the-other", lax, 5, 1)
	counted("and-skipped-there", strict, 5, 1)
	rejects(strict, 1)
	rejects(lax, 1)

	// Both count all again, and refuse the same hits: what was sent again is known to the stream.
	for _, f := range []fleet{strict, lax} {
		f.ingest.Stop()
	}
	require.NoError(t, s.redis.Client().FlushAll(t.Context()).Err())
	for _, f := range []fleet{strict, lax} {
		f.ingest.Start()
	}
	counted("again", strict, 5, 1)
	counted("again-and-again", lax, 5, 1)
	for f, want := range map[fleet]string{strict: "2", lax: "3"} {
		_, metrics, err := stack.Do("GET", f.ingest.URL()+"/metrics", nil)
		if line := `tallyroll_ingest_skipped_messages_total{reason="other_namespace",stream="HITS"} ` + want; err != nil || !strings.Contains(string(metrics), line) {
			t.Errorf("%s: its metrics have no line %s (%v)", f.namespace, line, err)
		}
	}
}

// redriving is a system with rejects of as many counters, each of which has to count once.
type redriving struct {
	*system
	keys []string
}

func startRedriving(t *testing.T, n int) redriving {
	s := redriving{system: start(t)}
	hits, err := s.js.Stream(t.Context(), "HITS")
	require.NoError(t, err)
	config := hits.CachedInfo().Config
	config.Duplicates = 100 * time.Millisecond // the least: what the stream remembers of ids must not matter
	if _, err := s.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	old := time.Now().AddDate(-1, 0, 0).UnixMilli()
	var body strings.Builder
	for i := range n {
		key := fmt.Sprintf("k-%d", i)
		s.keys = append(s.keys, key)
		fmt.Fprintf(&body, "{\"key\":%q,\"ts\":%d}\n", key, old)
	}
	s.send("hits.x", body.String())
	stack.Eventually(t, "rejects", func() (bool, string) {
		held := s.rejectsHeld()
		return held == uint64(n), fmt.Sprint(held)
	})
	return s
}

// begin starts to send all rejects again.
func (s redriving) begin(args ...string) (*exec.Cmd, *bytes.Buffer) {
	s.t.Helper()
	var out bytes.Buffer
	cmd := stack.Command(s.t.Context(), s.t, "redrive", append([]string{"--ts", "now"}, args...), []string{"NATS_URL=" + s.nats.URL()})
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(s.t, cmd.Start())
	return cmd, &out
}

// wantEachOnce checks that all rejects are gone and each has counted once.
func (s redriving) wantEachOnce() {
	s.t.Helper()
	if n := s.rejectsHeld(); n != 0 {
		s.t.Errorf("HITS_REJECTED still holds %d", n)
	}
	sent := time.Now()
	var answer stack.Answer
	stack.Eventually(s.t, "an answer with all that was sent", func() (bool, string) {
		var err error
		answer, err = stack.FetchTotals(s.query.URL(), url.Values{"key": s.keys, "window": {"24h"}})
		return err == nil && answer.AsOf.After(sent), fmt.Sprint(answer.AsOf, err)
	})
	for _, total := range answer.Totals {
		if total.Total != 1 {
			s.t.Errorf("%s counts %d", total.Key, total.Total)
		}
	}
	if len(answer.Totals) != len(s.keys) {
		s.t.Errorf("%d totals", len(answer.Totals))
	}
}

// stored tells of each message that is published again.
func (s redriving) stored() *nats.Subscription {
	s.t.Helper()
	sub, err := s.js.Conn().SubscribeSync("hits.*")
	require.NoError(s.t, err)
	require.NoError(s.t, s.js.Conn().Flush())
	return sub
}

func TestRejectsSentByAKilledRedriveCountOnce(t *testing.T) {
	t.Parallel()
	s := startRedriving(t, 400)
	sub := s.stored()
	for round := range 6 {
		args := [][]string{nil, {"--rate", "200"}}[round%2]
		cmd, _ := s.begin(args...)
		for range 1 + rand.IntN(50) {
			if _, err := sub.NextMsg(stack.Hung); err != nil {
				break // there are none left
			}
		}
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		t.Logf("round %d: %d rejects are left", round, s.rejectsHeld())
		for drained := true; drained; {
			_, err := sub.NextMsg(10 * time.Millisecond)
			drained = err == nil
		}
	}
	last, out := s.begin()
	if err := last.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Log(out)
	s.wantEachOnce()
}

func TestRejectsSentByTwoAtOnceCountOnce(t *testing.T) {
	t.Parallel()
	s := startRedriving(t, 400)
	first, out1 := s.begin()
	second, out2 := s.begin()
	for _, cmd := range []*exec.Cmd{first, second} {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s%s", err, out1, out2)
		}
	}
	t.Logf("%s%s", out1, out2)
	s.wantEachOnce()
}

// A redrive that sleeps while another one does all the work does nothing twice when it wakes.
func TestRejectsSentByAPausedRedriveCountOnce(t *testing.T) {
	t.Parallel()
	s := startRedriving(t, 400)
	sub := s.stored()
	first, out := s.begin("--rate", "100")
	for range 10 {
		if _, err := sub.NextMsg(stack.Hung); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, first.Process.Signal(syscall.SIGSTOP))
	t.Log(s.redrive("--ts", "now"))
	require.NoError(t, first.Process.Signal(syscall.SIGCONT))
	if err := first.Wait(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	t.Log(out)
	s.wantEachOnce()
}
