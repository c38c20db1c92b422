package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/limit"
	"tallyroll/internal/watch/form"
	"tallyroll/internal/watch/history"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/tests/schema"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// counters are the totals in Redis, and whether workers count.
type counters struct {
	mu     sync.Mutex
	totals map[string]int64
	floor  int64 // no summary lists a counter with at most so many hits
	stale  bool
	young  bool // counting began inside the window
}

func newCounters(totals map[string]int64) *counters { return &counters{totals: totals} }

func (c *counters) change(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func (c *counters) set(counter string, n int64) { c.change(func() { c.totals[counter] = n }) }

// fakeReader reads the counters for one process.
type fakeReader struct {
	*counters
	hasNoRedis func() bool
}

var errNoAnswer = errors.New("no answer from Redis")

func (r fakeReader) Answer(_ context.Context, questions []window.Question) (window.Answers, error) {
	if r.hasNoRedis() {
		return window.Answers{}, errNoAnswer
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now().UnixMilli()
	out := window.Answers{Now: now, AsOf: now}
	if r.stale {
		out.AsOf = now - 60_000
	}
	since := int64(1)
	if r.young {
		since = now
	}
	for _, q := range questions {
		n := r.totals[q.Counter]
		out.Answers = append(out.Answers, window.Answer{
			Estimate: window.Estimate{Total: n, Lower: n, Upper: n}, Range: window.Range{From: now - 60_000, To: now},
			Complete: !r.young, CountingSince: since,
		})
	}
	return out, nil
}

// fakeLimiter's keys have used as many hits as their counters nearly.LIMIT.KEY have.
type fakeLimiter struct{ *counters }

func (l fakeLimiter) Look(_ context.Context, takes []limit.Take) (a limit.Answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range takes {
		n := l.totals[limit.CounterName("nearly.{limit}.{key}").Of(t.Limit.Name, t.Key)]
		a.Decisions = append(a.Decisions, limit.Decision{Take: t, Lower: n, Upper: n, Remaining: max(0, t.Limit.Max-n)})
	}
	return a, nil
}

func (r fakeReader) Look(context.Context) (window.Layout, error) {
	if r.hasNoRedis() {
		return window.Layout{}, errNoAnswer
	}
	return window.Layout{Tiers: window.Tiers{{Cell: time.Second, Window: time.Hour}}, Shards: 1}, nil
}

func (fakeReader) Top(context.Context, window.Span, int, ...string) (read.Top, error) {
	return read.Top{}, errNoAnswer
}

func (r fakeReader) Names(_ context.Context, q read.NamesQuestion) (read.Names, error) {
	if r.hasNoRedis() {
		return read.Names{}, errNoAnswer
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now().UnixMilli()
	out := read.Names{Now: now, AsOf: now, CountingSince: 1}
	for _, name := range slices.Sorted(maps.Keys(r.totals)) {
		if strings.HasPrefix(name, q.Prefix) {
			out.Counters = append(out.Counters, name)
		}
	}
	return out, nil
}

func (r fakeReader) Bounds(context.Context, window.Span) (read.Top, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now().UnixMilli()
	out := read.Top{AsOf: now, Range: window.Range{From: now - 60_000, To: now}, Complete: true, CountingSince: 1, Floor: r.floor}
	for name, n := range r.totals {
		if n > r.floor {
			out.Counters = append(out.Counters, read.TopCounter{Counter: name, Answer: window.Answer{Estimate: window.Estimate{Upper: n + r.floor}}})
		}
	}
	slices.SortFunc(out.Counters, func(a, b read.TopCounter) int { return cmp.Compare(b.Upper, a.Upper) })
	return out, nil
}

// network is the connection between a process and NATS. It can be held up and cut.
type network struct {
	mu    sync.Mutex
	held  chan struct{} // closed to resume; nil: not held up
	conns []net.Conn
	dead  bool
}

func (n *network) Dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, 2*time.Second)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead {
		_ = conn.Close()
		return nil, errors.New("the process is dead")
	}
	n.conns = append(n.conns, conn)
	return &heldConn{conn, n}, nil
}

func (n *network) wait() {
	n.mu.Lock()
	paused := n.held
	n.mu.Unlock()
	if paused != nil {
		<-paused
	}
}

func (n *network) hold() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held == nil {
		n.held = make(chan struct{})
	}
}

func (n *network) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held != nil {
		close(n.held)
		n.held = nil
	}
}

// cut breaks all connections. A dead network accepts no new ones.
func (n *network) cut(dead bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead = dead
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
}

type heldConn struct {
	net.Conn
	n *network
}

func (c *heldConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.wait()
	return n, err
}

func (c *heldConn) Write(b []byte) (int, error) {
	c.n.wait()
	return c.Conn.Write(b)
}

// member is one process of a fleet, without its HTTP server and file.
type member struct {
	*network
	*service
	conn    *nats.Conn
	cancel  context.CancelFunc
	done    chan struct{}
	mu      sync.Mutex
	noRedis bool
}

func (m *member) connectRedis(connected bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noRedis = !connected
}

func (m *member) hasNoRedis() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.noRedis
}

// kill ends the process without releasing its leases. It closes the connection, because otherwise the process
// would wait for NATS.
func (m *member) kill() {
	m.cut(true)
	m.release()
	m.conn.Close()
	m.cancel()
	<-m.done
}

// startMember starts a process, which is killed when the test ends.
func startMember(t *testing.T, url string, c *counters, set *RuleSet, name string, change ...func(*service)) *member {
	t.Helper()
	m := &member{network: &network{}, done: make(chan struct{})}
	var err error
	m.conn, err = nats.Connect(url, nats.SetCustomDialer(m.network), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.RetryOnFailedConnect(true), nats.Timeout(5*time.Second), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	require.NoError(t, err)
	js, err := jetstream.New(m.conn)
	require.NoError(t, err)
	m.service = &service{
		settings: Settings{
			Interval: 50 * time.Millisecond, Timeout: 2 * time.Second, GiveUp: time.Hour, Keep: time.Hour,
			Changes: 1e6, Replicas: 1, MaxStates: 1000, MaxSum: 100,
		},
		process: name, metrics: newMetrics(), log: zerolog.Nop(), ruleSetChanged: make(chan struct{}, 1),
		timeouts: timeouts{
			lease: 300 * time.Millisecond, outage: 600 * time.Millisecond, orphanGrace: time.Second,
			retryMin: 20 * time.Millisecond, retryMax: 200 * time.Millisecond, refusal: time.Hour, silence: time.Second,
		},
	}
	m.settings.Redis.Namespace = "tallyroll"
	for _, c := range change {
		c(m.service)
	}
	m.ruleSet.Store(set)
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		defer close(m.done)
		defer m.conn.Close()
		var problems problemLog
		for ctx.Err() == nil {
			_ = m.runSession(ctx, js, querier{fakeReader{c, m.hasNoRedis}, fakeLimiter{c}, m.settings.MaxSum}, &problems)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(m.kill)
	return m
}

// useRuleSet gives the process another rule set.
func (m *member) useRuleSet(set *RuleSet) {
	m.ruleSet.Store(set)
	m.ruleSetChanged <- struct{}{}
}

// deliveries returns the metric of that name.
func (m *member) deliveries(target, result string) float64 {
	families, _ := m.metrics.Registry.Gather()
	for _, f := range families {
		for _, one := range f.GetMetric() {
			labels := one.GetLabel()
			if f.GetName() == "tallyroll_watch_deliveries_total" && labels[1].GetValue() == target && labels[0].GetValue() == result {
				return one.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// awaitStateMetric waits until the metric has these numbers of states, such as "young 2", and others are 0.
func (m *member) awaitStateMetric(t *testing.T, want string) {
	t.Helper()
	stack.Eventually(t, want, func() (bool, string) {
		var got []string
		families, err := m.metrics.Registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, one := range f.GetMetric() {
				if n := one.GetGauge().GetValue(); f.GetName() == "tallyroll_watch_states" && n > 0 {
					got = append(got, fmt.Sprintf("%s %v", one.GetLabel()[0].GetValue(), n))
				}
			}
		}
		return strings.Join(got, ", ") == want, strings.Join(got, ", ")
	})
}

// awaitDeliveries waits until the metric is at least n.
func (m *member) awaitDeliveries(t *testing.T, target, result string, n float64) {
	t.Helper()
	stack.Eventually(t, fmt.Sprintf("%v deliveries to %s to be %s", n, target, result), func() (bool, string) {
		got := m.deliveries(target, result)
		return got >= n, fmt.Sprint(got)
	})
}

// receiver receives webhooks, drops repeated ids, and fails at times.
type receiver struct {
	mu       sync.Mutex
	failure  string   // "", refuse, or lose (it accepts a change, but answers 500)
	received []string // rule, state and id
	repeated int
	refused  int
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	var n struct {
		ID string `json:"id"`
		history.KeyState
	}
	if err != nil || json.Unmarshal(body, &n) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == "refuse" {
		r.refused++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if text := fmt.Sprintf("%s %s %s", n.Rule, n.State, n.ID); slices.Contains(r.received, text) {
		r.repeated++
	} else {
		r.received = append(r.received, text)
	}
	if r.failure == "lose" {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

func (r *receiver) fail(how string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = how
}

// changesOf returns the received changes of a rule, in order.
func (r *receiver) changesOf(rule string) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, change := range r.received {
		if strings.HasPrefix(change, rule+" ") {
			out = append(out, change)
		}
	}
	return out
}

// await waits until exactly these states of a rule were received, or those of another way that is right, too.
func (r *receiver) await(t *testing.T, rule string, want ...string) {
	t.Helper()
	stack.Eventually(t, rule+" to be received as "+strings.Join(want, " or "), func() (bool, string) {
		var states []string
		for _, change := range r.changesOf(rule) {
			states = append(states, strings.Fields(change)[1])
		}
		return slices.Contains(want, strings.Join(states, " ")), fmt.Sprint(states)
	})
}

// parseRules reads a file whose targets are these receivers.
func parseRules(t *testing.T, receivers map[string]*receiver, rules string) *RuleSet {
	t.Helper()
	text := "targets:\n"
	for _, name := range slices.Sorted(maps.Keys(receivers)) {
		server := httptest.NewServer(receivers[name])
		t.Cleanup(server.Close)
		text += fmt.Sprintf("  %s: {webhook: %s}\n", name, server.URL)
	}
	return mustParse(t, text+"rules:\n"+rules)
}

func mustParse(t *testing.T, text string) *RuleSet {
	t.Helper()
	set, err := Parse([]byte(text), nil)
	require.NoError(t, err)
	require.NoError(t, schema.Check(form.Schema(), []byte(text)))
	return set
}

// readRecords returns every record of the stream in its order.
func readRecords(t *testing.T, js jetstream.JetStream) (out []*entry) {
	t.Helper()
	stream := newStateStream(js, "tallyroll")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	consumer, err := js.OrderedConsumer(ctx, history.StreamName("tallyroll"), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{history.Subject("tallyroll", "state.>")}, InactiveThreshold: time.Second, // there can be many
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // no process has made it yet
	}
	require.NoError(t, err)
	if consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	require.NoError(t, history.Read(ctx, consumer, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		stream.apply(m.Subject(), m.Data(), meta.Sequence.Stream, meta.Timestamp)
		out = append(out, stream.states[m.Subject()])
		if meta.NumPending == 0 {
			cancel()
		}
	}))
	return out
}

// webhooks is a receiver that answers by path and attempt number, and keeps what it received.
type webhooks struct {
	*httptest.Server
	mu       sync.Mutex
	received []string // path and state
}

func newWebhooks(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, attempt int)) *webhooks {
	t.Helper()
	a := &webhooks{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n history.KeyState
		_ = json.NewDecoder(r.Body).Decode(&n)
		a.mu.Lock()
		a.received = append(a.received, r.URL.Path+" "+string(n.State))
		attempt := len(a.received)
		a.mu.Unlock()
		answer(w, r, attempt)
	}))
	t.Cleanup(a.Close)
	return a
}

// await waits until exactly these were received.
func (a *webhooks) await(t *testing.T, want ...string) {
	t.Helper()
	stack.Eventually(t, fmt.Sprint("webhooks received: ", want), func() (bool, string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Equal(a.received, want), fmt.Sprint(a.received)
	})
}

// keyReceiver receives webhooks, and drops repeated ids.
type keyReceiver struct {
	*httptest.Server
	mu       sync.Mutex
	ids      map[string]bool
	received []string // key and state
}

func newKeyReceiver(t *testing.T) *keyReceiver {
	t.Helper()
	a := &keyReceiver{ids: make(map[string]bool)}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n history.KeyState
		_ = json.NewDecoder(r.Body).Decode(&n)
		a.mu.Lock()
		defer a.mu.Unlock()
		if id := r.Header.Get("webhook-id"); !a.ids[id] {
			a.ids[id] = true
			a.received = append(a.received, n.Key+" "+string(n.State))
		}
	}))
	t.Cleanup(a.Close)
	return a
}

// await waits until exactly these were received, in any order.
func (a *keyReceiver) await(t *testing.T, want ...string) {
	t.Helper()
	want = slices.Sorted(slices.Values(want))
	stack.Eventually(t, fmt.Sprint("received: ", want), func() (bool, string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		got := slices.Sorted(slices.Values(a.received))
		return slices.Equal(got, want), fmt.Sprint(got)
	})
}
