package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// hookSecret is one of Standard Webhooks; hookSecretOld is what receivers had before.
const (
	hookSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	hookSecretOld = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

// change is one change of a rule's state that a receiver got.
type change struct {
	ID     string    `json:"id"`
	Rule   string    `json:"rule"`
	Key    string    `json:"key"`
	State  string    `json:"state"`
	Total  int64     `json:"total"`
	Lower  int64     `json:"lower"`
	Upper  *int64    `json:"upper"`
	Window string    `json:"window"`
	AsOf   time.Time `json:"as_of"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`

	got  time.Time
	body string
}

// receiver takes webhooks as Standard Webhooks want them: it checks the signature, and drops ids that it has
// seen.
type receiver struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	changes []change
	seen    map[string]bool
	repeats int
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, seen: make(map[string]bool)}
	check, err := webhooks.NewWebhook(hookSecret)
	require.NoError(t, err)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the sender was killed
		}
		if err := check.Verify(body, req.Header); err != nil {
			t.Errorf("signature of %s: %v", body, err)
		}
		c := change{got: time.Now(), body: string(body)}
		if err := json.Unmarshal(body, &c); err != nil || c.ID != req.Header.Get("webhook-id") {
			t.Errorf("body %s (%v), webhook-id %q", body, err, req.Header.Get("webhook-id"))
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.seen[c.ID] {
			r.repeats++
		} else {
			r.seen[c.ID] = true
			r.changes = append(r.changes, c)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(r.Close)
	return r
}

// of returns the changes of a rule's key that the receiver got, in the order of arrival.
func (r *receiver) of(rule, key string) (out []change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.changes {
		if c.Rule == rule && c.Key == key {
			out = append(out, c)
		}
	}
	return out
}

func states(changes []change) string {
	out := make([]string, len(changes))
	for i, c := range changes {
		out[i] = c.State
	}
	return strings.Join(out, " ")
}

// eventually waits until the receiver has got these states of a rule's key.
func (r *receiver) eventually(rule, key, want string) []change {
	r.t.Helper()
	var got []change
	stack.Eventually(r.t, fmt.Sprintf("%s %s: %s", rule, key, want), func() (bool, string) {
		got = r.of(rule, key)
		return states(got) == want, states(got)
	})
	return got
}

// rulesFor is a file of rules, whose only target is a receiver.
func rulesFor(t *testing.T, r *receiver, rules string) string {
	t.Helper()
	return file(t, "watch.yml", fmt.Sprintf("targets:\n  ops: {webhook: %s, secret_file: %s}\nrules:\n%s", r.URL, file(t, "secret", hookSecret+"\n"+hookSecretOld+"\n"), rules))
}

// A webhook receives each key that has used more than 80 % of a limit, and its end, however the hits came and
// went. Three processes follow the limits' file, and an edit of max moves the threshold.
func TestWatchNotifiesAtAPercentageOfALimit(t *testing.T) {
	t.Parallel()
	s := start(t)
	r := newReceiver(t)
	list := ""
	for _, name := range []string{"plan.pro", "login", "budget"} {
		list += fmt.Sprintf("- {name: %s, limit: %s, above: 80%%, to: [ops]}\n", strings.ReplaceAll(name, ".", "-"), name)
	}
	const text = `limits:
- {name: plan.pro, window: 10s, max: %d, count: {nearly: "nearly.{limit}.{key}"}}
- {name: login, window: 1m, max: 5, policy: log, count: {nearly: "nearly.{limit}.{key}"}}
- {name: budget, window: month, max: 100, key: "user:{key}", count: {nearly: "nearly.{limit}.{key}"}}
`
	limits := file(t, "limits.yml", fmt.Sprintf(text, 100))
	q := s.startQuery("QUERY_LIMITS_FILE=" + limits).URL()
	rules := rulesFor(t, r, list)
	for range 3 {
		stack.Watch(t, s.nats, s.redis, rules, "WATCH_LIMITS_FILE="+limits)
	}
	take := func(limit, key string, n int, more map[string]any) {
		t.Helper()
		body := map[string]any{"limit": limit, "key": key, "n": n}
		maps.Copy(body, more)
		status, d := decide(t, http.MethodPost, q+"/v1/take", body)
		require.Equal(t, http.StatusOK, status, d.Detail)
	}
	take("plan.pro", "cold", 80, nil)
	take("plan.pro", "hot", 80, nil)
	take("plan.pro", "hot", 1, nil)
	got := r.eventually("plan-pro", "nearly.plan:pro.hot", "firing")
	if c := got[0]; c.Total != 81 || c.Lower != 81 || c.Window != "10s" {
		t.Errorf("received %+v", c)
	}
	for range 20 { // good logins, each of which is given back
		take("login", "alice", 1, nil)
		status, _ := decide(t, http.MethodPost, q+"/v1/return", map[string]any{"limit": "login", "key": "alice"})
		require.Equal(t, http.StatusOK, status)
	}
	for i := range 5 {
		take("login", "bob", 1, map[string]any{"id": fmt.Sprint(i), "ttl": "1m"})
	}
	take("budget", "carol", 90, map[string]any{"id": "a", "ttl": "1h"})
	r.eventually("login", "nearly.login.bob", "firing")
	if c := r.eventually("budget", "nearly.budget.user:carol", "firing")[0]; c.Total != 90 || c.Window != "month" {
		t.Errorf("received %+v", c)
	}
	status, _ := decide(t, http.MethodPost, q+"/v1/settle", map[string]any{"limit": "budget", "key": "carol", "id": "a", "n": 40})
	require.Equal(t, http.StatusOK, status)
	r.eventually("budget", "nearly.budget.user:carol", "firing resolved")
	r.eventually("plan-pro", "nearly.plan:pro.hot", "firing resolved")
	write(t, limits, fmt.Sprintf(text, 10))
	stack.Eventually(t, "query to have the new max", func() (bool, string) {
		_, body, err := stack.Do(http.MethodGet, q+"/v1/limits", nil)
		return strings.Contains(string(body), `"max":10,`), fmt.Sprint(string(body), err)
	})
	take("plan.pro", "warm", 9, nil)
	r.eventually("plan-pro", "nearly.plan:pro.warm", "firing resolved")
	for rule, key := range map[string]string{"plan-pro": "nearly.plan:pro.cold", "login": "nearly.login.alice"} {
		if got := r.of(rule, key); len(got) > 0 {
			t.Errorf("%s is not above 80 %%: %v", key, got)
		}
	}
}

// If nobody counts, a rule that waits for too few hits is unknown, and not firing.
func TestWatchReportsUnknownWhileNoWorkerCounts(t *testing.T) {
	t.Parallel()
	s := start(t)
	r := newReceiver(t)
	rules := rulesFor(t, r, "- {name: quiet, key: heartbeat, window: 5s, below: 1, to: [ops]}\n")
	s.send("hits.heartbeat", `{"n":1}`)
	stack.EventuallyTotal(t, s.query.URL(), "heartbeat", "1m", 1)
	stack.EventuallyTotal(t, s.query.URL(), "heartbeat", "5s", 0) // so counting began before the window, too
	stack.Watch(t, s.nats, s.redis, rules, "WATCH_INTERVAL=200ms")
	r.eventually("quiet", "heartbeat", "firing") // rightly: there are no more hits
	s.ingest.Kill()
	changes := r.eventually("quiet", "heartbeat", "firing unknown")
	if c := changes[1]; c.Reason != "nobody has counted lately" || c.Upper != nil {
		t.Errorf("received %+v", c)
	}
	s.ingest.Start()
	r.eventually("quiet", "heartbeat", "firing unknown firing")
	s.redis.Stop()
	if c := r.eventually("quiet", "heartbeat", "firing unknown firing unknown")[3]; !strings.Contains(c.body, `"total":null,"lower":null,"upper":null,`) || !strings.Contains(c.body, `"as_of":null,`) {
		t.Errorf("received %s", c.body)
	}
	s.redis.Start()
	got := states(r.eventually("quiet", "heartbeat", "firing unknown firing unknown firing"))
	if slices.Contains(strings.Fields(got), "ok") {
		t.Errorf("received %s", got)
	}
}

// A real Alertmanager shows what fires, and ends it when it is resolved.
func TestWatchNotifiesAlertmanager(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("alertmanager")
	if err != nil {
		path, err = exec.LookPath("prometheus-alertmanager")
	}
	if err != nil {
		t.Skip("NOT CHECKED: watch with a real Alertmanager, because there is none on the PATH: make alertmanager")
	}
	config := file(t, "alertmanager.yml", "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
	am := stack.Server(t, path, func(port int) (args, env []string) {
		return []string{"--config.file=" + config, "--storage.path=" + t.TempDir(), fmt.Sprintf("--web.listen-address=127.0.0.1:%d", port), "--cluster.listen-address="}, nil
	})
	s := start(t)
	stack.Watch(t, s.nats, s.redis, file(t, "watch.yml", fmt.Sprintf("targets: {am: {alertmanager: 'http://%s'}}\nrules:\n- {name: errors, key: http.5xx, window: 10s, above: 3, to: [am]}\n", am.Addr())))
	s.send("hits.http.5xx", `{"n":5}`)
	shows := func(want int) {
		t.Helper()
		stack.Eventually(t, fmt.Sprintf("%d alerts that fire", want), func() (bool, string) {
			status, body, err := stack.Do(http.MethodGet, "http://"+am.Addr()+"/api/v2/alerts?filter=state%3Dfiring", nil)
			var alerts []struct{ Labels map[string]string }
			if err != nil || status != http.StatusOK || json.Unmarshal(body, &alerts) != nil {
				return false, fmt.Sprint(status, string(body), err)
			}
			return len(alerts) == want && (want == 0 || alerts[0].Labels["rule"] == "errors" && alerts[0].Labels["key"] == "http.5xx" && alerts[0].Labels["namespace"] == "tallyroll"), string(body)
		})
	}
	shows(1)
	shows(0) // long before Alertmanager would forget it by itself
}

// watch --try prints what each rule sees, without NATS, and tells nobody.
func TestWatchTriesRulesWithoutTelling(t *testing.T) {
	t.Parallel()
	s := start(t)
	r := newReceiver(t)
	rules := rulesFor(t, r, `
- {name: errors, key: http.5xx, window: 1h, above: 3, surely: true, to: [ops]}
- {name: quiet, key: http.5xx, window: 1h, below: 6, to: [ops]}
- {name: enough, key: http.5xx, window: 1h, below: 5, to: [ops]}
- {name: all, prefix: http., window: 1h, above: 7, to: [ops]}
- {name: shops, prefix: shop., group: 2, window: 1h, above: 1, to: [ops]}
- {name: busiest, top: 1, window: 1h, above: 4, to: [ops]}
- {name: rise, key: http.5xx, window: 1h, change: +12.5%, least: 3, to: [ops]}
`)
	try := func() string {
		t.Helper()
		cmd := stack.Command(t.Context(), t, "watch", []string{"--try"}, []string{"WATCH_FILE=" + rules, "REDIS_URL=" + s.redis.URL()})
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		table := regexp.MustCompile(` +`).ReplaceAllString(string(out), " ")
		table = strings.ReplaceAll(table, " \n", "\n")
		return regexp.MustCompile(` \S+Z( |\n)`).ReplaceAllString(table, " NOW$1")
	}
	s.send("hits.http.5xx", `{"n":5}`)
	s.send("hits.http.2xx", `{"n":3}`)
	s.send("hits.shop.eu.cart", `{"n":2}`)
	for key, n := range map[string]int64{"http.5xx": 5, "http.2xx": 3, "shop.eu.cart": 2} {
		s.awaitTotal(key, n)
	}
	const want = `RULE KEY HOLDS TOTAL LOWER UPPER WINDOW CONDITION AS OF WHY
errors http.5xx yes 5 5 5 1h above 3 surely NOW
quiet http.5xx unknown 5 5 5 1h below 6 NOW counting began inside the window
enough http.5xx no 5 5 5 1h below 5 NOW
all http. yes 8 8 8 1h above 7 NOW
shops unknown ? ? ? 1h above 1 NOW counting began inside the window
shops shop.eu yes 2 2 2 1h above 1 NOW
busiest unknown ? ? ? 1h above 4 NOW counting began inside the window
busiest http.5xx yes 5 5 5 1h above 4 NOW
rise http.5xx unknown 5 5 5 1h change +12.5% least 3 NOW counting began inside the window
`
	if got := try(); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
	longer := rulesFor(t, r, "- {name: fine, key: k, window: 1h, above: 1, to: [ops]}\n- {name: long, key: k, window: 100d, above: 1, to: [ops]}\n")
	out, err := stack.Command(t.Context(), t, "watch", []string{"--try"}, []string{"WATCH_FILE=" + longer, "REDIS_URL=" + s.redis.URL()}).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "line 5: window: ") || !strings.Contains(string(out), "1h cells reach back 32d") || strings.Contains(string(out), "AS OF") {
		t.Errorf("%v: %s", err, out)
	}
	s.redis.Stop()
	out, err = stack.Command(t.Context(), t, "watch", []string{"--try"}, []string{"WATCH_FILE=" + rules, "REDIS_URL=" + s.redis.URL()}).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "query Redis: ") {
		t.Errorf("%v: %s", err, out)
	}
	if got := r.of("errors", "http.5xx"); len(got) > 0 {
		t.Errorf("received %+v", got)
	}
}
