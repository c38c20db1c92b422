package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// requireLine checks that the last line of a run begins and goes on as it should.
func (s *system) requireLine(output, head string, more ...string) {
	s.t.Helper()
	last := output[strings.LastIndexByte(strings.TrimSpace(output), '\n')+1:]
	if !strings.HasPrefix(last, head) || !hasAll(last, more) {
		s.t.Errorf("%q; want %q and %q", last, head, more)
	}
}

// Bad hits do not keep their neighbours from counting. They are found in HITS_REJECTED with the reason, stay
// refused while nothing has changed, and count once when they are sent again with another time, even if Redis
// loses all afterwards.
func TestBadHitsAreFoundAgainAndTheirNeighboursCount(t *testing.T) {
	t.Parallel()
	s := start(t)
	now := time.Now()
	old, ahead := now.AddDate(-1, 0, 0).UnixMilli(), now.Add(time.Hour).UnixMilli()
	s.send("hits.of.subject", fmt.Sprintf("{\"key\":\"late\",\"n\":3,\"ts\":%d}\n{\"ts\":%d}\n{\"key\":\"good\"}", old, old))
	s.send("hits.x", fmt.Sprintf(`[{"key":"future","n":5,"ts":%d},{"key":""}]`, ahead))
	s.awaitRejects(4)
	s.awaitTotal("good", 1)
	stream, err := s.js.Stream(t.Context(), "HITS_REJECTED")
	require.NoError(t, err)
	reject, err := stream.GetMsg(t.Context(), 3)
	require.NoError(t, err)
	require.Equal(t, "hits_rejected.HITS", reject.Subject)
	require.JSONEq(t, fmt.Sprintf(`{"key":"future","n":5,"ts":%d}`, ahead), string(reject.Data))
	for name, want := range map[string]string{"Tallyroll-Reason": "future", "Tallyroll-Stream": "HITS", "Tallyroll-Sequence": "2", "Tallyroll-Item": "0"} {
		require.Equal(t, want, reject.Header.Get(name), name)
	}

	s.requireLine(s.redrive("--reason", "future", "--ts", "stored", "--dry-run"), "found 4 rejects, 1 match; would send 1 again; left 0")
	s.requireLine(s.redrive("--reason", "too_late"), "found 4 rejects, 2 match; sent 2 again in 2 messages in ")
	s.requireLine(s.redrive("--stream", "HITS_7"), "found 0 rejects, 0 match; ")
	s.awaitRejects(4) // refused again, because nothing has changed
	s.requireLine(s.redrive("--ts", "now"), "found 4 rejects, 4 match; sent 3 again in ", "; left 1: 1 bad_key (would be refused")
	late := map[string]int64{"late": 3, "of.subject": 1, "future": 5}
	s.awaitTotals(late)
	s.awaitRejects(1)

	// A worker that counts everything again refuses the same hits again; they are sent, and are there already.
	s.ingest.Stop()
	require.NoError(t, s.js.DeleteStream(t.Context(), "HITS_REJECTED"))
	s.loseRedis()
	s.requireLine(s.redrive(), "no stream HITS_REJECTED")
	s.ingest.Start()
	s.send("hits.last", "")
	s.awaitTotal("last", 1)
	s.awaitTotals(late)
	// Sent by the first run without --ts, and refused: of these two, too, the first refusal has been sent.
	s.requireLine(s.redrive("--reason", "too_late,future", "--ts", "now"), "found ", "sent 0 again in ", ", 5 had been sent before; left 0")
	s.awaitTotals(late)
}

// Two fleets count one stream, with other settings: one refuses what the other counts. What one sends again
// counts there alone, and not twice after Redis has lost all.
func TestRejectsBelongToTheirNamespace(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	const strict, lax = "tallyroll", "shop.eu"
	ingest, query := map[string]*stack.Service{}, map[string]*stack.Service{}
	for namespace, ahead := range map[string]string{strict: "10s", lax: "2h"} {
		name := "TALLYROLL_NAMESPACE=" + namespace
		ingest[namespace] = stack.Ingest(t, s.nats, s.redis, name, "INGEST_MAX_AHEAD="+ahead)
		query[namespace] = s.startQuery(name)
	}
	now := time.Now()
	old, ahead := now.AddDate(-1, 0, 0).UnixMilli(), now.Add(time.Hour).UnixMilli()
	s.send("hits.x", fmt.Sprintf(`[{"key":"future","n":5,"ts":%d},{"key":"late","ts":%d},{"key":""}]`, ahead, old))
	counted := func(when string, futureOfStrict, lateOfBoth int64) {
		t.Helper()
		s.send("hits.after."+when, "") // when it counts, whatever was stored before it does
		for namespace, future := range map[string]int64{strict: futureOfStrict, lax: 5} {
			stack.EventuallyTotal(t, query[namespace].URL(), "after."+when, "24h", 1)
			stack.EventuallyTotal(t, query[namespace].URL(), "future", "24h", future)
			stack.EventuallyTotal(t, query[namespace].URL(), "late", "24h", lateOfBoth)
		}
	}
	rejected := func(want map[string]uint64) {
		t.Helper()
		for namespace, n := range want {
			what := fmt.Sprintf("%d rejects of %s", n, namespace)
			eventuallyAnswers(t, query[namespace].URL()+"/v1/rejects", what, func(a rejectsAnswer) bool { return a.Stored == n })
		}
	}
	redrive := func(namespace, want string) {
		t.Helper()
		args := []string{"--reason", "future,too_late,bad_key", "--ts", "stored"}
		code, out := runToEnd(t, "redrive", args, "NATS_URL="+s.nats.URL(), "TALLYROLL_NAMESPACE="+namespace)
		require.Zero(t, code, out)
		s.requireLine(out, want)
	}
	counted("refused", 0, 0)
	rejected(map[string]uint64{strict: 3, lax: 2})
	redrive("shop", "found 0 rejects, 0 match; ")
	redrive(strict, "found 3 rejects, 3 match; sent 3 again in 3 messages ")
	redrive(lax, "found 2 rejects, 2 match; sent 2 again in 2 messages ")
	counted("sent", 5, 1)
	rejected(map[string]uint64{strict: 1, lax: 1}) // a bad key is refused again
	for _, worker := range ingest {
		worker.Stop()
	}
	s.loseRedis()
	for _, worker := range ingest {
		worker.Start()
	}
	counted("again", 5, 1)
}

// However redrive is disturbed, each reject counts once: it is killed again and again, it sleeps while
// another one does its work, and two run at once.
func TestRejectsSentByDisturbedRedrivesCountOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	hits, err := s.js.Stream(t.Context(), "HITS")
	require.NoError(t, err)
	config := hits.CachedInfo().Config
	config.Duplicates = 100 * time.Millisecond // the least: what the stream remembers of ids must not matter
	_, err = s.js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	conn := s.nats.Conn()
	var published *nats.Subscription // has each message that is published again
	old := time.Now().AddDate(-1, 0, 0).UnixMilli()
	var keys []string
	refuse := func(disturbance string) {
		t.Helper()
		var body strings.Builder
		for i := range 200 {
			keys = append(keys, fmt.Sprintf("%s-%d", disturbance, i))
			fmt.Fprintf(&body, "{\"key\":%q,\"ts\":%d}\n", keys[len(keys)-1], old)
		}
		s.send("hits.x", body.String())
		s.awaitRejects(200)
		published, err = conn.SubscribeSync("hits.*")
		require.NoError(t, err)
		require.NoError(t, conn.Flush())
	}
	wait := func(n int) { // until n are published, or a redrive has ended without that many
		stack.Eventually(t, "messages", func() (bool, string) {
			msgs, _, err := published.Pending()
			return msgs >= n || s.countRejects() == 0, fmt.Sprint(msgs, err)
		})
	}

	refuse("killed")
	rounds := 2
	if stack.All() {
		rounds = 6
	}
	for round := range rounds {
		cmd, _ := s.begin("redrive", nil, append([]string{"--ts", "now"}, [][]string{nil, {"--rate", "200"}}[round%2]...)...)
		wait(round*50 + 1 + rand.IntN(50))
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}
	s.redrive("--ts", "now")
	require.Zero(t, s.countRejects())

	refuse("paused")
	cmd, ended := s.begin("redrive", nil, "--ts", "now", "--rate", "100")
	wait(10)
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	s.redrive("--ts", "now")
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	ended()

	refuse("together")
	_, first := s.begin("redrive", nil, "--ts", "now")
	_, second := s.begin("redrive", nil, "--ts", "now")
	first()
	second()
	require.Zero(t, s.countRejects())
	s.awaitAllCounted()
	answer, err := stack.FetchTotals(s.query.URL(), url.Values{"key": keys, "window": {"24h"}})
	require.NoError(t, err)
	require.Len(t, answer.Totals, len(keys))
	for _, total := range answer.Totals {
		require.EqualValues(t, 1, total.Total, total.Key)
	}
}
