package watch

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

var (
	faultSeed  = flag.Uint64("watch.seed", 0, "seed of TestFaults; 0 draws one")
	faultSteps = flag.Int("watch.steps", 0, "faults of TestFaults; 0: 20, and 60 in make test-all")
)

// world is what Redis would say, and when it would not.
type world struct {
	mu     sync.Mutex
	totals map[string]int64
	fresh  bool
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// sight is how one process sees the world.
type sight struct {
	*world
	blind func() bool
}

var errAway = errors.New("no answer from Redis")

func (s sight) Answer(ctx context.Context, questions []window.Question) (window.Answers, error) {
	if s.blind() {
		return window.Answers{}, errAway
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UnixMilli()
	out := window.Answers{Now: now, AsOf: now}
	if !s.fresh {
		out.AsOf = now - 60_000
	}
	for _, q := range questions {
		n := s.totals[q.Counter]
		out.Answers = append(out.Answers, window.Answer{
			Estimate: window.Estimate{Total: n, Lower: n, Upper: n}, Range: window.Range{From: now - 60_000, To: now}, Complete: true, CountingSince: 1,
		})
	}
	return out, nil
}

func (s sight) Look(context.Context) (window.Layout, error) {
	if s.blind() {
		return window.Layout{}, errAway
	}
	return window.Layout{Tiers: window.Tiers{{Cell: time.Second, Window: time.Hour}}, Shards: 1}, nil
}

func (s sight) Top(context.Context, window.Span, int) (window.Top, error) {
	return window.Top{}, errAway
}

func (s sight) Names(_ context.Context, q window.NamesQuestion) (window.Names, error) {
	if s.blind() {
		return window.Names{}, errAway
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UnixMilli()
	out := window.Names{Now: now, AsOf: now, CountingSince: 1}
	for _, name := range slices.Sorted(maps.Keys(s.totals)) {
		if strings.HasPrefix(name, q.Prefix) {
			out.Counters = append(out.Counters, name)
		}
	}
	return out, nil
}

// wire is the network between a process and NATS: it can hold everything up, and cut.
type wire struct {
	mu    sync.Mutex
	held  chan struct{} // closed when it goes on; nil: it is not held up
	conns []net.Conn
	dead  bool
}

func (w *wire) Dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, 2*time.Second)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		_ = conn.Close()
		return nil, errors.New("the process is dead")
	}
	w.conns = append(w.conns, conn)
	return &wiredConn{conn, w}, nil
}

func (w *wire) wait() {
	w.mu.Lock()
	held := w.held
	w.mu.Unlock()
	if held != nil {
		<-held
	}
}

func (w *wire) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		w.held = make(chan struct{})
	}
}

func (w *wire) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != nil {
		close(w.held)
		w.held = nil
	}
}

// cut breaks all connections. A dead wire takes no more.
func (w *wire) cut(dead bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = dead
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

type wiredConn struct {
	net.Conn
	w *wire
}

func (c *wiredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.w.wait()
	return n, err
}

func (c *wiredConn) Write(b []byte) (int, error) {
	c.w.wait()
	return c.Conn.Write(b)
}

// member is one process of a fleet, as far as this package makes it.
type member struct {
	*wire
	*service
	conn   *nats.Conn
	cancel context.CancelFunc
	done   chan struct{}
	mu     sync.Mutex
	blind  bool
}

func (m *member) see(sees bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blind = !sees
}

// kill ends it without a word to anybody.
func (m *member) kill() {
	m.cut(true)
	m.cancel()
	m.release()
	<-m.done
}

func startMember(t *testing.T, url string, w *world, book *Book, name string, change ...func(*service)) *member {
	t.Helper()
	m := &member{wire: &wire{}, done: make(chan struct{})}
	conn, err := nats.Connect(url, nats.SetCustomDialer(m.wire), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.RetryOnFailedConnect(true), nats.Timeout(5*time.Second), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	require.NoError(t, err)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	s := &service{
		settings: Settings{Interval: 50 * time.Millisecond, Timeout: 400 * time.Millisecond, GiveUp: time.Hour, Keep: time.Hour, Changes: 1e6, Replicas: 1, MaxStates: 1000, MaxSum: 100},
		name:     name, metrics: newMetrics(), log: zerolog.Nop(), changed: make(chan struct{}, 1),
		patience: patience{seat: 300 * time.Millisecond, unknown: 600 * time.Millisecond, gone: time.Second, retryFirst: 20 * time.Millisecond, retryMost: 200 * time.Millisecond, refused: time.Hour, yield: time.Second},
	}
	s.settings.Redis.Namespace = "tallyroll"
	for _, c := range change {
		c(s)
	}
	s.book.Store(book)
	ctx, cancel := context.WithCancel(context.Background())
	m.service, m.conn, m.cancel = s, conn, cancel
	go func() {
		defer close(m.done)
		defer conn.Close()
		var said saying
		for ctx.Err() == nil {
			_ = s.session(ctx, js, sight{w, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.blind }}, &said)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return m
}

// ear takes webhooks, drops ids that it has seen, and is ill at times.
type ear struct {
	mu     sync.Mutex
	ill    string // "", refuse, lose (it takes a change, and its answer is lost), or late
	heard  []string
	seen   map[string]bool
	again  int
	refuse int
}

func (e *ear) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var n struct {
		ID string `json:"id"`
		Said
	}
	if err != nil || json.Unmarshal(body, &n) != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ill == "refuse" {
		e.refuse++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if e.seen[n.ID] {
		e.again++
	} else {
		e.seen[n.ID] = true
		e.heard = append(e.heard, fmt.Sprintf("%s %s %s", n.Rule, n.State, n.ID))
	}
	if e.ill == "lose" {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

func (e *ear) be(ill string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ill = ill
}

// of is what it has heard of a rule, in order.
func (e *ear) of(rule string) (out []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.heard {
		if strings.HasPrefix(h, rule+" ") {
			out = append(out, h)
		}
	}
	return out
}

// bookFor is a file whose targets are ears.
func bookFor(t *testing.T, ears map[string]*ear, rules string) *Book {
	t.Helper()
	text := "targets:\n"
	for _, name := range slices.Sorted(maps.Keys(ears)) {
		server := httptest.NewServer(ears[name])
		t.Cleanup(server.Close)
		text += fmt.Sprintf("  %s: {webhook: %s}\n", name, server.URL)
	}
	book, err := Parse([]byte(text + "rules:\n" + rules))
	require.NoError(t, err)
	return book
}

// Three processes are killed, held up, cut off and blinded at random while counters pass thresholds, and targets are
// ill. In the end each target has heard of every change that was stored, once by its ids and in order for each rule, and
// each stored state follows the one before it.
func TestFaults(t *testing.T) {
	t.Parallel()
	seed := *faultSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-watch.seed=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	broker := stack.NATS(t)
	ears := map[string]*ear{"a": {seen: make(map[string]bool)}, "b": {seen: make(map[string]bool)}}
	var text strings.Builder
	const rules = 24
	for i := range rules {
		fmt.Fprintf(&text, "- {name: r%d, key: k%d, window: 1m, %s, for: %dms, to: [a, b]}\n", i, i, []string{"above: 9", "below: 10"}[i%2], []int{0, 100}[i/2%2])
	}
	book := bookFor(t, ears, text.String())
	w := &world{totals: make(map[string]int64), fresh: true}
	var members []*member
	names := 0
	start := func() *member {
		names++
		return startMember(t, broker.URL(), w, book, fmt.Sprintf("m%d", names))
	}
	for range 3 {
		members = append(members, start())
	}
	t.Cleanup(func() {
		for _, m := range members {
			m.kill()
		}
	})
	steps := *faultSteps
	if steps == 0 {
		steps = stack.Rounds(20, 60)
	}
	for range steps {
		w.set(func() {
			for range random.IntN(10) {
				w.totals[fmt.Sprintf("k%d", random.IntN(rules))] = int64(random.IntN(20))
			}
		})
		i := random.IntN(len(members))
		m := members[i]
		switch random.IntN(12) {
		case 0:
			m.kill()
			members[i] = start()
		case 1, 2:
			m.hold()
		case 3, 4, 5:
			for _, m := range members {
				m.release()
			}
		case 6:
			m.cut(false)
		case 7:
			m.see(false)
		case 8:
			m.see(true)
		case 9:
			w.set(func() { w.fresh = random.IntN(3) > 0 })
		case 10:
			ears["a"].be([]string{"", "", "refuse", "lose"}[random.IntN(4)])
		case 11:
			if random.IntN(3) == 0 {
				broker.Stop()
				broker.Start()
			}
		}
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond) // the pause between faults is one of them
	}
	for _, m := range members {
		m.release()
		m.see(true)
	}
	ears["a"].be("")
	w.set(func() { w.fresh = true })
	js := broker.JetStream()
	var stored []*entry
	stack.Eventually(t, "all states to be those of the world", func() (bool, string) {
		stored = records(t, js)
		last := make(map[string]State)
		for _, e := range stored {
			last[e.Rule] = e.State
		}
		for i, r := range book.Rules {
			w.mu.Lock()
			n := w.totals[r.Key]
			w.mu.Unlock()
			holds := n > 9 == (i%2 == 0)
			if state := last[r.Name]; holds != (state == Firing) || !holds && state != OK && state != Resolved {
				return false, fmt.Sprintf("%s with %d hits is %s", r.Name, n, state)
			}
		}
		return true, ""
	})
	said := 0
	for _, r := range book.Rules {
		var want []string
		var before Record
		for _, e := range stored {
			if e.Rule != r.Name {
				continue
			}
			require.Equal(t, before.State, e.Previous, "%v %v", r.Name, e.State)
			if e.State == Firing && before.State != Pending && !before.Open && r.For > 0 {
				t.Errorf("%s fires after %s", r.Name, before.State)
			}
			if !e.Quiet {
				want = append(want, fmt.Sprintf("%s %s %s", r.Name, e.State, identify(e.seq, e.stored)))
			}
			before = e.Record
		}
		said += len(want)
		for name, ear := range ears {
			stack.Eventually(t, "what "+name+" hears of "+r.Name, func() (bool, string) {
				got := ear.of(r.Name)
				return slices.Equal(got, want), fmt.Sprintf("heard %v\nwant %v", got, want)
			})
		}
	}
	for name, ear := range ears {
		ear.mu.Lock()
		t.Logf("target %s: %d changes, %d again, %d refused; %d processes", name, len(ear.heard), ear.again, ear.refuse, names)
		ear.mu.Unlock()
	}
	if said == 0 {
		t.Error("nothing was said")
	}
}

// records reads every record of the stream in its order.
func records(t *testing.T, js jetstream.JetStream) (out []*entry) {
	t.Helper()
	l := newLog(js, "tallyroll")
	l.told = func(e *entry) { out = append(out, e) }
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_ = l.follow(ctx, jetstream.DeliverAllPolicy, cancel)
	return out
}

// Whatever metrics watch has, a process that evaluates and tells fills all of them.
func TestEveryMetricIsFilled(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t)
	book := bookFor(t, map[string]*ear{"a": {seen: make(map[string]bool)}}, "- {name: r, key: k, window: 1m, above: 0, to: [a]}\n")
	m := startMember(t, broker.URL(), &world{totals: map[string]int64{"k": 1}, fresh: true}, book, "m")
	t.Cleanup(m.kill)
	described := make(chan *prometheus.Desc, 1000)
	m.metrics.Registry.Describe(described)
	close(described)
	want := make(map[string]bool)
	for d := range described {
		if name := regexp.MustCompile(`fqName: "(tallyroll_watch_\w+)"`).FindStringSubmatch(d.String()); name != nil {
			want[name[1]] = true
		}
	}
	stack.Eventually(t, "all metrics to have a value", func() (bool, string) {
		missing := maps.Clone(want)
		families, err := m.metrics.Registry.Gather()
		for _, f := range families {
			delete(missing, f.GetName())
		}
		return err == nil && len(want) > 10 && len(missing) == 0, fmt.Sprint(missing, " of ", want, err)
	})
}

// A stream that was rolled back, and has as many messages again as before, is found out when a change is refused, whether
// it has an earlier record of the key or none.
func TestARefusedChangeShowsARollBack(t *testing.T) {
	t.Parallel()
	for _, records := range []int{2, 0} {
		t.Run(fmt.Sprint(records, " records"), func(t *testing.T) {
			t.Parallel()
			js := stack.NATS(t).JetStream()
			stream, err := openStream(t.Context(), js, "tallyroll", Keeping{time.Hour, 10, 1})
			require.NoError(t, err)
			l := newLog(js, "tallyroll")
			subject := subjectOf("tallyroll", "r", "k")
			for i := range 3 {
				to, text := subject, `{"rule":"r","key":"k","state":"ok"}`
				if i >= records {
					to, text = subjectFor("tallyroll", fmt.Sprint("delivery.", i)), "{}"
				}
				_, err := js.Publish(t.Context(), to, []byte(text))
				require.NoError(t, err)
			}
			l.take(subject, []byte(`{"rule":"r","key":"k","state":"firing"}`), 3, time.Now())
			_, lost, err := l.publish(t.Context(), []draft{{subject, 3, Record{}}})
			require.NoError(t, err)
			require.Equal(t, 1, lost, "refused changes")
			ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
			defer cancel()
			require.ErrorIs(t, l.guard(ctx, stream.Created), errRolledBack)
			require.Contains(t, l.snapshot(), subject, "what is to be stored again")
		})
	}
}

// The leader finds out with its next heartbeat, also if no change is refused: the older copy lacks its last heartbeat, or
// gives the next one a sequence that was a change's.
func TestAHeartbeatShowsARollBack(t *testing.T) {
	t.Parallel()
	for lost, sequences := range map[string]struct{ seat, change uint64 }{"a heartbeat and a change": {5, 6}, "only a change": {1, 2}, "all heartbeats": {5, 0}} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			js := stack.NATS(t).JetStream()
			stream, err := openStream(t.Context(), js, "tallyroll", Keeping{time.Hour, 10, 1})
			require.NoError(t, err)
			l, first := newLog(js, "tallyroll"), "seat"
			if sequences.change == 0 {
				first = "delivery.x"
			}
			_, err = js.Publish(t.Context(), subjectFor("tallyroll", first), []byte("{}"))
			require.NoError(t, err)
			l.take(subjectFor("tallyroll", "seat"), []byte("{}"), sequences.seat, time.Now())
			if sequences.change > 0 {
				l.take(subjectOf("tallyroll", "r", "k"), []byte(`{"rule":"r","key":"k","state":"firing"}`), sequences.change, time.Now())
			}
			_ = l.replace(t.Context(), "seat", beat{}, sequences.seat)
			for range 6 { // the copy has as many messages as the stream had
				_, err = js.Publish(t.Context(), subjectFor("tallyroll", "delivery.y"), []byte("{}"))
				require.NoError(t, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
			defer cancel()
			require.ErrorIs(t, l.guard(ctx, stream.Created), errRolledBack)
		})
	}
}

// NATS comes back with an older copy of itself. A target that was told of a change which the copy does not have is told
// again, with another id; one that was not is told, too; and both are told how it ends.
func TestNATSIsRolledBack(t *testing.T) {
	t.Parallel()
	store, older := t.TempDir(), t.TempDir()
	broker := stack.NATS(t, func(o *server.Options) { o.StoreDir = store })
	ears := map[string]*ear{"a": {seen: make(map[string]bool)}, "b": {seen: make(map[string]bool)}}
	book := bookFor(t, ears, "- {name: r, key: k, window: 1m, above: 9, to: [a, b]}\n- {name: still, key: none, window: 1m, below: 1, to: [a, b]}\n")
	w := &world{totals: make(map[string]int64), fresh: true}
	for _, name := range []string{"m1", "m2"} {
		m := startMember(t, broker.URL(), w, book, name)
		t.Cleanup(m.kill)
	}
	hears := func(name, rule, want string) {
		t.Helper()
		stack.Eventually(t, name+" to hear of "+rule+": "+want, func() (bool, string) {
			var states []string
			for _, heard := range ears[name].of(rule) {
				states = append(states, strings.Fields(heard)[1])
			}
			return strings.Join(states, " ") == want, fmt.Sprint(states)
		})
	}
	for name := range ears {
		hears(name, "still", "firing")
	}
	broker.Stop()
	require.NoError(t, os.CopyFS(older, os.DirFS(store)))
	broker.Start()
	ears["b"].be("refuse")
	w.set(func() { w.totals["k"] = 10 })
	hears("a", "r", "firing")
	broker.Stop()
	require.NoError(t, errors.Join(os.RemoveAll(store), os.CopyFS(store, os.DirFS(older))))
	w.set(func() { w.totals["k"] = 0 }) // so only the processes remember that it fired
	broker.Start()
	ears["b"].be("")
	hears("a", "r", "firing firing resolved")
	hears("b", "r", "firing resolved")
	hears("a", "still", "firing")
	hears("b", "still", "firing")
}
