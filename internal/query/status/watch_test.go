package status

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/setting"
	"tallyroll/internal/watch"
	"tallyroll/internal/watch/history"
	"tallyroll/internal/web/access"
	"tallyroll/tests/apitest"
)

// followWatch returns a service that follows the states of rules until the test ends, and has these:
// published as watch publishes changes of states.
func followWatch(t *testing.T, records ...watch.Record) (http.Handler, jetstream.JetStream) {
	t.Helper()
	s, h, js := onNATS(t)
	prefix := "tallyroll_watch." + apitest.Namespace + "."
	createStream(t, js, history.StreamName(apitest.Namespace), prefix+">")
	for _, r := range records {
		data, err := json.Marshal(r)
		require.NoError(t, err)
		publish(t, js, fmt.Sprintf("%sstate.%s.k%x", prefix, r.Rule, r.Key), string(data), nil)
	}
	publish(t, js, prefix+"seat", `{"by":"w","at":"2026-11-21T10:00:00Z","rules":3}`, nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.FollowWatch(ctx, js) }()
	t.Cleanup(func() { stop(); <-ended })
	return h, js
}

func record(rule, key string, state, previous history.State) watch.Record {
	at := apitest.FakeNow
	return watch.Record{KeyState: history.KeyState{Rule: rule, Key: key, State: state, Window: "5m", Total: 7, At: at}, Since: at, Previous: previous}
}

// The states of rules and their changes are listed: the newest first, page by page, and those that are asked
// for.
func TestStatesOfRulesAndTheirChangesAreListed(t *testing.T) {
	t.Parallel()
	quiet, gone := record("errors", "a.x", history.OK, history.OK), record("old", "a.x", history.Resolved, history.Firing)
	quiet.Quiet, gone.Gone = true, true
	h, js := followWatch(t,
		record("errors", "a.x", history.OK, ""), record("errors", "a.x", history.Firing, history.OK), record("errors", "a.x", history.OK, history.Firing), quiet,
		record("silence", "b.OTHER", history.Unknown, ""), record("silence", "b.OTHER", history.Firing, history.Unknown), gone)
	out := awaitAnswer(t, h, "/v1/watch", func(a WatchAnswer) bool { return len(a.Changes) == 6 && !a.EvaluatedAt.IsZero() })
	if len(out.States) != 2 || out.States[0].Rule != "silence" || out.States[1].State != history.OK || out.Rules != 3 || out.Counts[history.Firing] != 1 {
		t.Errorf("states %+v, %d rules, %v", out.States, out.Rules, out.Counts)
	}
	if c := out.Changes[0]; c.Rule != "old" || c.ID == "" || c.Position <= out.Changes[1].Position {
		t.Errorf("the newest change: %+v", c)
	}
	var pages []history.Change
	for before, more := "", true; more; {
		page := get[WatchAnswer](t, h, "/v1/watch?limit=4"+before)
		pages = append(pages, page.Changes...)
		before, more = fmt.Sprintf("&before=%d", page.Next), page.Next > 0
	}
	require.Equal(t, out.Changes, pages)
	for query, changes := range map[string]int{"rule=errors": 3, "key=b.OTHER": 2, "state=firing": 2, "rule=nobody": 0} {
		require.Len(t, get[WatchAnswer](t, h, "/v1/watch?"+query).Changes, changes, query)
	}
	checkRefusals(t, h, map[string]string{
		"/v1/watch?state=on": "ok, pending, firing, resolved or unknown", "/v1/watch?limit=0": "1 to 1000", "/v1/watch?before=x": "before", "/v1/watch?key=%00": "control character",
	})
	// A stream that is deleted takes its history with it.
	require.NoError(t, js.DeleteStream(t.Context(), history.StreamName(apitest.Namespace)))
	none := awaitAnswer(t, h, "/v1/watch", func(a WatchAnswer) bool { return a.EvaluatedAt.IsZero() })
	require.Equal(t, WatchAnswer{Counts: map[history.State]int{}, States: []history.Standing{}, Changes: []history.Change{}}, none)
}

// narrowToken returns the token narrow, which is about counters that begin with a.
func narrowToken(t *testing.T) *access.Token {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.yml")
	text := fmt.Sprintf("tokens: [{name: narrow, sha256: %x, may: [read], prefixes: [a.]}]", sha256.Sum256([]byte("narrow")))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	tokens, err := access.New(access.TokenSettings{Program: "TEST", File: file}, setting.NewFiles(zerolog.Nop(), func(string) func(error) { return func(error) {} }))
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer narrow")
	token, p := tokens.Find(r)
	require.Nil(t, p)
	return token
}

// A token with prefixes sees the states of its own counters, and no other's: not their numbers, rules and
// positions.
func TestTokenSeesTheStatesOfItsOwnCounters(t *testing.T) {
	t.Parallel()
	h, _ := followWatch(t, record("mine", "a.x", history.Firing, ""), record("theirs", "b.OTHER", history.Firing, ""), record("OTHERS", "", history.OK, ""))
	awaitAnswer(t, h, "/v1/watch", func(a WatchAnswer) bool { return len(a.States) == 3 && !a.EvaluatedAt.IsZero() })
	token := narrowToken(t)
	narrow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(access.With(r.Context(), token)))
	})
	var out WatchAnswer
	text := string(apitest.ReadBody(t, apitest.Send(narrow, http.MethodGet, "/v1/watch", "")))
	require.NoError(t, json.Unmarshal([]byte(text), &out))
	if len(out.States) != 1 || len(out.Changes) != 1 || out.States[0].Key != "a.x" || out.Rules != 0 || strings.Contains(text, "OTHER") || strings.Contains(text, "theirs") {
		t.Errorf("narrow: %s", text)
	}
	apitest.RequireProblem(t, apitest.Send(narrow, http.MethodGet, "/v1/watch?key=b.OTHER", ""), http.StatusForbidden)
	if out := get[WatchAnswer](t, narrow, "/v1/watch?rule=theirs"); len(out.States)+len(out.Changes) > 0 {
		t.Errorf("narrow, of another's rule: %+v", out)
	}
}
