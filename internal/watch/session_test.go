package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// answers is a receiver that answers by its path, and keeps what came.
type answers struct {
	*httptest.Server
	mu   sync.Mutex
	came []string // path and state
}

func answering(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, attempt int)) *answers {
	t.Helper()
	a := &answers{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n Said
		_ = json.NewDecoder(r.Body).Decode(&n)
		a.mu.Lock()
		a.came = append(a.came, r.URL.Path+" "+string(n.State))
		attempt := len(a.came)
		a.mu.Unlock()
		answer(w, r, attempt)
	}))
	t.Cleanup(a.Close)
	return a
}

// eventually waits until this has come.
func (a *answers) eventually(t *testing.T, want ...string) {
	t.Helper()
	stack.Eventually(t, fmt.Sprint("what comes: ", want), func() (bool, string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Equal(a.came, want), fmt.Sprint(a.came)
	})
}

// deliveries is the metric of that name.
func (m *member) deliveries(target, result string) float64 {
	families, _ := m.metrics.Registry.Gather()
	for _, f := range families {
		for _, one := range f.GetMetric() {
			if labels := one.GetLabel(); f.GetName() == "tallyroll_watch_deliveries_total" && labels[1].GetValue() == target && labels[0].GetValue() == result {
				return one.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// What a webhook answers decides what becomes of a change, and no error quotes the URL.
func TestAnswersOfWebhooks(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	elsewhere := answering(t, func(w http.ResponseWriter, _ *http.Request, _ int) {})
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
		a := answering(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
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
	elsewhere.eventually(t)
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

// A target that says 410 is not tried again with this change, but with the next.
func TestATargetThatIsGoneHearsOfTheNextChange(t *testing.T) {
	t.Parallel()
	gone := answering(t, func(w http.ResponseWriter, _ *http.Request, attempt int) {
		if attempt == 1 {
			w.WriteHeader(http.StatusGone)
		}
	})
	book := parse(t, fmt.Sprintf("targets: {gone: {webhook: %s}}\nrules: [{name: r, key: k, window: 1m, above: 9, to: [gone]}]\n", gone.URL))
	w := &world{totals: map[string]int64{"k": 10}, fresh: true}
	m := startMember(t, stack.NATS(t).URL(), w, book, "m")
	t.Cleanup(m.kill)
	gone.eventually(t, "/ firing")
	w.set(func() { w.totals["k"] = 0 })
	gone.eventually(t, "/ firing", "/ resolved")
	stack.Eventually(t, "what is counted", func() (bool, string) {
		got := fmt.Sprint(m.deliveries("gone", "given_up"), m.deliveries("gone", "failed"), m.deliveries("gone", "delivered"))
		return got == "1 0 1", got
	})
}

// The URL of a webhook is read from its file for each attempt, and no log has it.
func TestTheFileOfAWebhook(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "url")
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	a := answering(t, func(w http.ResponseWriter, r *http.Request, _ int) {
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
	a.eventually(t, "/hunter2 firing", "/b firing")
	require.NoError(t, os.Remove(file))
	if err := w.tell(t.Context(), notice{}); err == nil || !strings.Contains(err.Error(), "webhook_file cannot be read") {
		t.Error(err)
	}

	var out asking.Log
	write(a.URL + "/hunter2")
	book := parse(t, fmt.Sprintf("targets: {a: {webhook_file: %s}}\nrules: [{name: r, key: k, window: 1m, above: 9, to: [a]}]\n", file))
	m := startMember(t, stack.NATS(t).URL(), &world{totals: map[string]int64{"k": 10}, fresh: true}, book, "m", func(s *service) { s.log = zerolog.New(&out) })
	t.Cleanup(m.kill)
	stack.Eventually(t, "a line about the failed attempt", func() (bool, string) {
		text := out.String()
		return strings.Contains(text, "404 Not Found"), text
	})
	write(a.URL + "/b")
	stack.Eventually(t, "the change", func() (bool, string) {
		return m.deliveries("a", "delivered") == 1, out.String()
	})
	if text := out.String(); strings.Contains(text, "hunter2") {
		t.Errorf("the log has the URL: %s", text)
	}
}

func parse(t *testing.T, text string) *Book {
	t.Helper()
	book, err := Parse([]byte(text))
	require.NoError(t, err)
	return book
}

// read gives the process another book.
func (m *member) read(book *Book) {
	m.book.Store(book)
	m.changed <- struct{}{}
}

// A rule that is taken out while it fires ends, and whoever was told is told so. A target that is taken out while it is down
// is forgotten, with what waited for it, and stops no other.
func TestRulesAndTargetsAreTakenOut(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t)
	ears := map[string]*ear{"a": {seen: make(map[string]bool)}, "down": {seen: make(map[string]bool), ill: "refuse"}}
	w := &world{totals: map[string]int64{"k": 10, "l": 10}, fresh: true}
	book := bookFor(t, ears, "- {name: r, key: k, window: 1m, above: 9, to: [a, down]}\n- {name: old, key: l, window: 1m, above: 9, to: [a, down]}\n")
	m := startMember(t, broker.URL(), w, book, "m")
	t.Cleanup(m.kill)
	stack.Eventually(t, "both rules to fire, and one target to refuse that", func() (bool, string) {
		return len(ears["a"].of("r")) == 1 && len(ears["a"].of("old")) == 1 && m.deliveries("down", "failed") > 1, fmt.Sprint(ears["a"].of("r"), ears["a"].of("old"))
	})
	m.read(bookFor(t, map[string]*ear{"a": ears["a"]}, "- {name: r, key: k, window: 1m, above: 9, to: [a]}\n"))
	stack.Eventually(t, "the rule that is gone to end", func() (bool, string) {
		got := ears["a"].of("old")
		return len(got) == 2 && strings.HasPrefix(got[1], "old resolved "), fmt.Sprint(got)
	})
	js := broker.JetStream()
	stack.Eventually(t, "the progress of the target that is gone to end", func() (bool, string) {
		l := newLog(js, "tallyroll")
		err := l.lookAgain(t.Context(), subjectFor("tallyroll", "delivery.down"))
		return err == nil && l.lease("down").Gone, fmt.Sprint(l.lease("down"), err)
	})
	w.set(func() { w.totals["k"] = 0 })
	stack.Eventually(t, "the other rule to go on", func() (bool, string) {
		got := ears["a"].of("r")
		return len(got) == 2 && strings.HasPrefix(got[1], "r resolved "), fmt.Sprint(got)
	})
	for _, e := range records(t, js) {
		if e.Rule == "old" && e.State == Resolved && (!e.Gone || e.Reason == "") {
			t.Errorf("%+v", e.Record)
		}
	}
}

// If somebody deletes the stream, it is made again: what fires is told again, with another id, and what ends is told.
func TestTheStreamIsDeleted(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t)
	ears := map[string]*ear{"a": {seen: make(map[string]bool)}}
	w := &world{totals: map[string]int64{"k": 10}, fresh: true}
	book := bookFor(t, ears, "- {name: r, key: k, window: 1m, above: 9, to: [a]}\n")
	for _, name := range []string{"m1", "m2"} {
		m := startMember(t, broker.URL(), w, book, name)
		t.Cleanup(m.kill)
	}
	hears := func(want int, state string) {
		t.Helper()
		stack.Eventually(t, fmt.Sprint("change ", want, ", ", state), func() (bool, string) {
			got := ears["a"].of("r")
			return len(got) == want && strings.HasPrefix(got[want-1], "r "+state), fmt.Sprint(got)
		})
	}
	hears(1, "firing")
	require.NoError(t, broker.JetStream().DeleteStream(t.Context(), StreamName("tallyroll")))
	hears(2, "firing")
	w.set(func() { w.totals["k"] = 0 })
	hears(3, "resolved")
}

// If more keys of a rule are not calm than its share allows, those with most hits have a state, and the rule is unknown until
// there is room. Other rules have their own shares.
func TestTooManyStates(t *testing.T) {
	t.Parallel()
	ears := map[string]*ear{"a": {seen: make(map[string]bool)}}
	w := &world{totals: map[string]int64{"mine.a": 10}, fresh: true}
	for i := range 9 {
		w.totals[fmt.Sprintf("shop.%d.cart", i)] = int64(10 + i)
	}
	book := bookFor(t, ears, "- {name: shops, prefix: shop., group: 2, window: 1m, above: 9, to: [a]}\n- {name: mine, prefix: mine., group: 2, window: 1m, above: 9, to: [a]}\n")
	broker := stack.NATS(t)
	m := startMember(t, broker.URL(), w, book, "m", func(s *service) { s.settings.MaxStates = 10 })
	t.Cleanup(m.kill)
	js := broker.JetStream()
	states := func(want string) {
		t.Helper()
		stack.Eventually(t, want, func() (bool, string) {
			last := make(map[string]string)
			for _, e := range records(t, js) {
				last[e.Rule+e.Key] = strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.State, e.Reason))
			}
			got := strings.Join(slices.Sorted(maps.Values(last)), ", ")
			return got == want, got
		})
	}
	states("mine.a firing, ok, shop.4 firing, shop.5 firing, shop.6 firing, shop.7 firing, shop.8 firing, unknown " + reasonStates)
	w.set(func() {
		for i := 4; i < 9; i++ {
			w.totals[fmt.Sprintf("shop.%d.cart", i)] = 0
		}
		for i := range 9 {
			w.totals[fmt.Sprintf("mine.%d", i)] = 10
		}
	})
	states("mine.0 firing, mine.1 firing, mine.2 firing, mine.3 firing, mine.a firing, ok, shop.0 firing, shop.1 firing, shop.2 firing, shop.3 firing, " +
		"shop.4 resolved, shop.5 resolved, shop.6 resolved, shop.7 resolved, shop.8 resolved, unknown " + reasonStates)
}
