package watch

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// No error quotes the URL.
func TestAnswerOfAWebhookDecidesWhatBecomesOfAChange(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	elsewhere := newWebhooks(t, func(w http.ResponseWriter, _ *http.Request, _ int) {})
	for _, c := range []struct {
		name  string
		code  int
		set   map[string]string
		body  string
		want  string
		after time.Duration
	}{
		{"200", 200, nil, "", "", 0},
		{"204", 204, nil, "", "", 0},
		{"410", 410, map[string]string{"Retry-After": "7"}, "", "410 Gone: the target wants no more of them", 7 * time.Second},
		{"a redirect", 302, map[string]string{"Location": elsewhere.URL}, "", "302 Found: redirects are not followed", 0},
		{"a redirect that keeps the method", 307, map[string]string{"Location": elsewhere.URL}, "", "307 Temporary Redirect: redirects are not followed", 0},
		{"a redirect to no URL", 302, map[string]string{"Location": "http://%zz/T0/hunter2"}, "", "no answer that is HTTP", 0},
		{"seconds", 503, map[string]string{"Retry-After": "7"}, "busy", "503 Service Unavailable", 7 * time.Second},
		{"a date", 429, map[string]string{"Retry-After": now.Add(90 * time.Second).UTC().Format(http.TimeFormat)}, "", "429 Too Many Requests", 90 * time.Second},
		{"a date in the past", 429, map[string]string{"Retry-After": now.Add(-time.Hour).UTC().Format(http.TimeFormat)}, "", "429 Too Many Requests", 0},
		{"neither", 500, map[string]string{"Retry-After": "soon"}, "", "500 Internal Server Error", 0},
		{"the path in the answer", 404, nil, "nothing at /T0/hunter2", "404 Not Found", 0},
		{"the path in the answer, cut", 404, nil, strings.Repeat("x", 190) + "/T0/hunter2", "404 Not Found", 0},
		{"the query in the answer, in HTML", 404, nil, "no token=hunter3&amp;b=1", "404 Not Found", 0},
	} {
		a := newWebhooks(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			for key, value := range c.set {
				w.Header().Set(key, value)
			}
			w.WriteHeader(c.code)
			fmt.Fprint(w, c.body)
		})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.URL+"/T0/hunter2?token=hunter3&b=1", strings.NewReader("{}"))
		require.NoError(t, err)
		err = send(newClient(), r, now)
		got := ""
		if err != nil {
			got = err.Error()
		}
		var status *statusError
		if answered := errors.As(err, &status); got != c.want || answered && status.after != c.after {
			t.Errorf("%s: %q, %+v; want %q, %v", c.name, got, status, c.want, c.after)
		}
	}
	elsewhere.await(t)
	closed := httptest.NewServer(nil)
	closed.Close()
	babbler := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			fmt.Fprintf(conn, "%s is no status line\r\n\r\n", r.URL)
			_ = conn.Close()
		}
	}))
	t.Cleanup(babbler.Close)
	for _, address := range []string{closed.URL, babbler.URL} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+"/T0/hunter2", nil)
		require.NoError(t, err)
		if err := send(newClient(), r, now); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("no answer: %v", err)
		}
	}
}

func TestTargetThatAnswers410ReceivesOnlyTheNextChange(t *testing.T) {
	t.Parallel()
	gone := newWebhooks(t, func(w http.ResponseWriter, _ *http.Request, attempt int) {
		if attempt == 1 {
			w.WriteHeader(http.StatusGone)
		}
	})
	book := mustParse(t, fmt.Sprintf("targets: {gone: {webhook: %s}}\nrules: [{name: r, key: k, window: 1m, above: 9, to: [gone]}]\n", gone.URL))
	c := newCounters(map[string]int64{"k": 10})
	m := startMember(t, stack.SharedNATS(t).URL(), c, book, "m")
	gone.await(t, "/ firing")
	c.set("k", 0)
	gone.await(t, "/ firing", "/ resolved")
	m.awaitDeliveries(t, "gone", "delivered", 1)
	require.EqualValues(t, 1, m.deliveries("gone", "given_up"))
	require.Zero(t, m.deliveries("gone", "failed"))
}

// No log has the URL.
func TestURLOfAWebhookIsReadFromItsFileForEachAttempt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "url")
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	a := newWebhooks(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		if r.URL.Path == "/hunter2" {
			http.Error(w, "moved from "+r.URL.Path, http.StatusNotFound)
		}
	})
	w := &webhook{urlFile: file, client: newClient()}
	for _, c := range []struct{ text, want string }{
		{"hunter2", "webhook_file " + file + " has no URL: allowed is " + urlHint + ", and nothing else"},
		{a.URL + "/hunter2\n" + a.URL + "/b\n", "webhook_file " + file + " has no URL: allowed is " + urlHint + ", and nothing else"},
		{a.URL + "/hunter2\n", "404 Not Found"},
		{a.URL + "/b", "<nil>"},
	} {
		write(c.text)
		require.Equal(t, c.want, fmt.Sprint(w.tell(t.Context(), notice{Said: Said{State: Firing}})), c.text)
	}
	a.await(t, "/hunter2 firing", "/b firing")
	require.NoError(t, os.Remove(file))
	require.ErrorContains(t, w.tell(t.Context(), notice{}), "webhook_file cannot be read")

	var out asking.Log
	write(a.URL + "/hunter2")
	book := mustParse(t, fmt.Sprintf("targets: {a: {webhook_file: %s}}\nrules: [{name: r, key: k, window: 1m, above: 9, to: [a]}]\n", file))
	c := newCounters(map[string]int64{"k": 10})
	m := startMember(t, stack.SharedNATS(t).URL(), c, book, "m", func(s *service) { s.log = zerolog.New(&out) })
	stack.Eventually(t, "a line about the failed attempt", func() (bool, string) {
		text := out.String()
		return strings.Contains(text, "404 Not Found"), text
	})
	write(a.URL + "/b")
	m.awaitDeliveries(t, "a", "delivered", 1)
	require.NotContains(t, out.String(), "hunter2")
}

// A rule that is taken out while it fires ends, and whoever was told is told so. A target that is taken out while it is down
// is forgotten, with what waited for it, and stops no other.
func TestRuleAndTargetThatAreTakenOutEnd(t *testing.T) {
	t.Parallel()
	broker := stack.SharedNATS(t)
	a, down := &receiver{}, &receiver{failure: "refuse"}
	c := newCounters(map[string]int64{"k": 10, "l": 10})
	const rules = "- {name: r, key: k, window: 1m, above: 9, to: [a, down]}\n- {name: old, key: l, window: 1m, above: 9, to: [a, down]}\n"
	m := startMember(t, broker.URL(), c, parseFor(t, map[string]*receiver{"a": a, "down": down}, rules), "m")
	a.await(t, "r", "firing")
	a.await(t, "old", "firing")
	m.awaitDeliveries(t, "down", "failed", 2)
	m.read(parseFor(t, map[string]*receiver{"a": a}, "- {name: r, key: k, window: 1m, above: 9, to: [a]}\n"))
	a.await(t, "old", "firing resolved")
	js := broker.JetStream()
	stack.Eventually(t, "the progress of the target that is gone to end", func() (bool, string) {
		l := newLog(js, "tallyroll")
		err := l.lookAgain(t.Context(), subjectFor("tallyroll", "delivery.down"))
		return err == nil && l.lease("down").Gone, fmt.Sprint(l.lease("down"), err)
	})
	c.set("k", 0)
	a.await(t, "r", "firing resolved")
	for _, e := range readRecords(t, js) {
		if e.Rule == "old" && e.State == Resolved && (!e.Gone || e.Reason == "") {
			t.Errorf("%+v", e.Record)
		}
	}
}

// If somebody deletes the stream, it is created again: what fires is told again, with another id, and what ends is told.
func TestDeletedStreamIsCreatedAgainAndWhatFiresToldAgain(t *testing.T) {
	t.Parallel()
	broker := stack.SharedNATS(t)
	a := &receiver{}
	c := newCounters(map[string]int64{"k": 10})
	book := parseFor(t, map[string]*receiver{"a": a}, "- {name: r, key: k, window: 1m, above: 9, to: [a]}\n")
	for _, name := range []string{"m1", "m2"} {
		startMember(t, broker.URL(), c, book, name)
	}
	a.await(t, "r", "firing")
	require.NoError(t, broker.JetStream().DeleteStream(t.Context(), StreamName("tallyroll")))
	a.await(t, "r", "firing firing")
	c.set("k", 0)
	a.await(t, "r", "firing firing resolved")
}

// If more keys of a rule are not calm than its share allows, those with most hits have a state, and the rule is unknown until
// there is room. Other rules have their own shares.
func TestRuleWithMoreStatesThanItsShareIsUnknown(t *testing.T) {
	t.Parallel()
	c := newCounters(map[string]int64{"mine.a": 10})
	for i := range 9 {
		c.totals[fmt.Sprintf("shop.%d.cart", i)] = int64(10 + i)
	}
	book := parseFor(t, map[string]*receiver{"a": {}}, `
- {name: shops, prefix: shop., group: 2, window: 1m, above: 9, to: [a]}
- {name: mine, prefix: mine., group: 2, window: 1m, above: 9, to: [a]}
`)
	broker := stack.SharedNATS(t)
	startMember(t, broker.URL(), c, book, "m", func(s *service) { s.settings.MaxStates = 10 })
	js := broker.JetStream()
	states := func(want string) {
		t.Helper()
		stack.Eventually(t, want, func() (bool, string) {
			last := make(map[string]string)
			for _, e := range readRecords(t, js) {
				last[e.Rule+e.Key] = strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.State, e.Reason))
			}
			got := strings.Join(slices.Sorted(maps.Values(last)), ", ")
			return got == want, got
		})
	}
	states("mine.a firing, ok, shop.4 firing, shop.5 firing, shop.6 firing, shop.7 firing, shop.8 firing, unknown " + reasonStates)
	c.change(func() {
		for i := 4; i < 9; i++ {
			c.totals[fmt.Sprintf("shop.%d.cart", i)] = 0
		}
		for i := range 9 {
			c.totals[fmt.Sprintf("mine.%d", i)] = 10
		}
	})
	states("mine.0 firing, mine.1 firing, mine.2 firing, mine.3 firing, mine.a firing, ok, shop.0 firing, shop.1 firing, shop.2 firing, shop.3 firing, " +
		"shop.4 resolved, shop.5 resolved, shop.6 resolved, shop.7 resolved, shop.8 resolved, unknown " + reasonStates)
}
