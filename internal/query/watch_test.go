package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/status"
	"tallyroll/internal/watch"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// keepStates makes the stream of a namespace's rules, and publishes changes of states as watch does.
func keepStates(t *testing.T, js jetstream.JetStream, records ...watch.Record) {
	t.Helper()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: watch.StreamName(asking.Namespace), Subjects: []string{"tallyroll_watch." + asking.Namespace + ".>"}})
	require.NoError(t, err)
	for _, r := range records {
		data, err := json.Marshal(r)
		require.NoError(t, err)
		publish(t, js, fmt.Sprintf("tallyroll_watch.%s.state.%s.k%x", asking.Namespace, r.Rule, r.Key), string(data))
	}
	publish(t, js, "tallyroll_watch."+asking.Namespace+".seat", `{"by":"w","at":"2026-11-21T10:00:00Z","rules":3}`)
}

func record(rule, key string, state, before watch.State) watch.Record {
	at := asking.Now()
	return watch.Record{Said: watch.Said{Rule: rule, Key: key, State: state, Window: "5m", Total: 7, At: at}, Since: at, Previous: before}
}

// The states of rules and their changes are told: the newest first, page by page, and those that are asked for.
func TestWatchIsTold(t *testing.T) {
	t.Parallel()
	redis, broker := stack.Redis(t), stack.NATS(t)
	_, h := withNATS(t, redis.URL(), broker, asking.Now())
	if out := decoded(t, h, "/v1/watch", func(status.WatchAnswer) bool { return true }); len(out.States)+len(out.Changes) > 0 || !out.EvaluatedAt.IsZero() {
		t.Errorf("without a stream: %+v", out)
	}
	quiet := record("errors", "a.x", watch.OK, watch.OK)
	quiet.Quiet = true
	gone := record("old", "a.x", watch.Resolved, watch.Firing)
	gone.Gone = true
	keepStates(t, broker.JetStream(),
		record("errors", "a.x", watch.OK, ""), record("errors", "a.x", watch.Firing, watch.OK), record("errors", "a.x", watch.OK, watch.Firing), quiet,
		record("silence", "b.OTHER", watch.Unknown, ""), record("silence", "b.OTHER", watch.Firing, watch.Unknown), gone)
	out := decoded(t, h, "/v1/watch", func(a status.WatchAnswer) bool { return len(a.Changes) == 6 && !a.EvaluatedAt.IsZero() })
	if len(out.States) != 2 || out.States[0].Rule != "silence" || out.States[1].State != watch.OK || out.Rules != 3 || out.Counts[watch.Firing] != 1 {
		t.Errorf("states %+v, %d rules, %v", out.States, out.Rules, out.Counts)
	}
	if c := out.Changes[0]; c.Rule != "old" || c.ID == "" || c.Position <= out.Changes[1].Position {
		t.Errorf("the newest change: %+v", c)
	}
	var pages []watch.Change
	for before := ""; ; {
		page := decoded(t, h, "/v1/watch?limit=4"+before, func(status.WatchAnswer) bool { return true })
		pages = append(pages, page.Changes...)
		if page.Next == 0 {
			break
		}
		before = fmt.Sprintf("&before=%d", page.Next)
	}
	if fmt.Sprint(pages) != fmt.Sprint(out.Changes) {
		t.Errorf("in pages %v, at once %v", pages, out.Changes)
	}
	for query, changes := range map[string]int{"rule=errors": 3, "key=b.OTHER": 2, "state=firing": 2, "rule=nobody": 0} {
		if out := decoded(t, h, "/v1/watch?"+query, func(status.WatchAnswer) bool { return true }); len(out.Changes) != changes {
			t.Errorf("%s: %+v", query, out.Changes)
		}
	}
	for query, want := range map[string]string{
		"state=on": "ok, pending, firing, resolved or unknown", "limit=0": "1 to 1000", "before=x": "before", "key=%00": "control character", "rules=a": "rule",
	} {
		resp := asking.Ask(h, http.MethodGet, "/v1/watch?"+query, "")
		if body := string(asking.ReadAll(t, resp)); resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", query, resp.StatusCode, body)
		}
	}
	// A stream that is deleted takes its history with it.
	require.NoError(t, broker.JetStream().DeleteStream(t.Context(), watch.StreamName(asking.Namespace)))
	decoded(t, h, "/v1/watch", func(a status.WatchAnswer) bool { return len(a.States)+len(a.Changes) == 0 })
}

// A token with prefixes sees the states of its own counters, and no other's: not their numbers, rules and positions.
func TestWatchOfAToken(t *testing.T) {
	t.Parallel()
	redis, broker, now := stack.Redis(t), stack.NATS(t), asking.Now()
	s := onRedisWith(t, redis.URL(), now, fileSettings(tokensFile(t, "narrow may: [read], prefixes: [a.]", "full may: [read, admin]")))
	s.status.AsksNATS, s.status.Namespace = true, asking.Namespace
	onNATS(t, s, broker.URL())
	h := s.handler()
	keepStates(t, broker.JetStream(), record("mine", "a.x", watch.Firing, ""), record("theirs", "b.OTHER", watch.Firing, ""), record("OTHERS", "", watch.OK, ""))
	ask := func(token, query string) (int, string, status.WatchAnswer) {
		resp := asking.Ask(h, http.MethodGet, "/v1/watch"+query, "", "Authorization", "Bearer "+token)
		data := asking.ReadAll(t, resp)
		var out status.WatchAnswer
		_ = json.Unmarshal(data, &out)
		return resp.StatusCode, string(data), out
	}
	stack.Eventually(t, "the states", func() (bool, string) {
		code, body, out := ask("full", "")
		return code == http.StatusOK && len(out.States) == 3 && !out.EvaluatedAt.Equal(time.Time{}), body
	})
	code, body, out := ask("narrow", "")
	if code != http.StatusOK || len(out.States) != 1 || len(out.Changes) != 1 || out.States[0].Key != "a.x" || out.Rules != 0 || strings.Contains(body, "OTHER") || strings.Contains(body, "theirs") {
		t.Errorf("narrow: %d %s", code, body)
	}
	if code, body, _ := ask("narrow", "?key=b.OTHER"); code != http.StatusForbidden {
		t.Errorf("narrow, of another's key: %d %s", code, body)
	}
	if code, body, out := ask("narrow", "?rule=theirs"); code != http.StatusOK || len(out.States)+len(out.Changes) > 0 {
		t.Errorf("narrow, of another's rule: %d %s", code, body)
	}
}
