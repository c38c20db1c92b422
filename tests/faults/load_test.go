package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/unique"
	"tallyroll/tests/stack"
)

const (
	publishers = 4
	counters   = 300  // of a load that is not told otherwise
	few        = 20   // of them: on every shard, nearly
	batch      = 20   // most hits of one message
	maxKeys    = 1000 // of one question: the default of QUERY_MAX_KEYS
)

// load publishes hits in the background and remembers what was acknowledged. It publishes a message without
// an acknowledgement again under the same Nats-Msg-Id until there is one, so it remembers all stored hits.
type load struct {
	t      *testing.T
	js     jetstream.JetStream
	prefix string // of the counters' names, and of message ids
	single bool   // one hit a message
	size   int    // counters
	spread int    // streams that the messages go to, hitp.<i>.>; 0 for the one on hits.>

	messages, repeats atomic.Int64
	ids               atomic.Int64
	running           sync.WaitGroup
	stop              context.CancelFunc

	mu      sync.Mutex
	truth   map[string]int64
	uniques map[string]*unique.Sketch // what the unique values of each counter's hits make
}

// message is one message and what it counts.
type message struct {
	subject, id string
	body        []byte
	hits        map[string]int64
	uniques     []visit
}

// visit is a unique value of a hit on a counter.
type visit struct{ counter, unique string }

// visitors is how many unique values there are for a counter.
const visitors = 3000

// newLoad publishes nothing by itself.
func newLoad(s *system, prefix string, single bool) *load {
	return newSpreadLoad(s, prefix, single, counters, 0)
}

// newSpreadLoad is for many counters and several streams.
func newSpreadLoad(s *system, prefix string, single bool, size, spread int) *load {
	js, err := jetstream.New(s.broker.Conn(
		nats.ReconnectBufSize(-1),                                    // fail at once while there is no server
		nats.PingInterval(time.Second), nats.MaxPingsOutstanding(2))) // and leave one that is paused
	require.NoError(s.t, err)
	l := &load{t: s.t, js: js, prefix: prefix, single: single, size: size, spread: spread, stop: func() {}, truth: map[string]int64{}, uniques: map[string]*unique.Sketch{}}
	for i := range size {
		l.truth[l.counter(i)] = 0
	}
	return l
}

// startLoad publishes messages at the given rate until finish: at 1,000 a second
// and half of them batches, about 10,000 hits a second.
func startLoad(s *system, prefix string, single bool, perSecond int) *load {
	return newLoad(s, prefix, single).start(perSecond)
}

// start publishes in the background until finish.
func (l *load) start(perSecond int) *load {
	ctx, cancel := context.WithCancel(l.t.Context())
	l.stop = cancel
	for range publishers {
		l.running.Go(func() {
			tick := time.NewTicker(time.Second * publishers / time.Duration(perSecond))
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					l.publish(l.t.Context(), l.random()) // to its end, also when ctx is over
				}
			}
		})
	}
	l.t.Cleanup(func() { cancel(); l.running.Wait() })
	return l
}

// finish stops publishing and returns when every message begun is acknowledged.
func (l *load) finish() {
	l.t.Helper()
	l.stop()
	l.running.Wait()
	if l.t.Failed() {
		l.t.FailNow() // a message was not acknowledged: the truth is unknown
	}
}

// burst publishes n messages as fast as they are acknowledged.
func (l *load) burst(n int, next func() message) {
	l.t.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				l.publish(l.t.Context(), next())
			}
		})
	}
	wg.Wait()
	if l.t.Failed() {
		l.t.FailNow()
	}
}

func (l *load) counter(i int) string { return fmt.Sprintf("%s-%d", l.prefix, i) }

// subject spreads messages over the streams: counting commutes, so any will do.
func (l *load) subject(name string) string {
	if l.spread == 0 {
		return "hits." + name
	}
	return fmt.Sprintf("hitp.%d.%s", rand.IntN(l.spread), name)
}

func (l *load) random() message {
	if l.single || rand.IntN(2) == 0 {
		name := l.counter(rand.IntN(l.size))
		return message{subject: l.subject(name), hits: map[string]int64{name: 1}}
	}
	return l.batch(1 + rand.IntN(batch))
}

// batch is a message of several hits, as lines or as an array.
func (l *load) batch(size int) message {
	m := message{subject: l.subject("batch"), hits: make(map[string]int64, size)}
	lines := make([]string, size)
	for i := range lines {
		// Some counters are hit much more often than others.
		name, n := l.counter(min(int(rand.ExpFloat64()*float64(l.size)/8), l.size-1)), int64(1)
		line := fmt.Sprintf(`{"key":%q`, name)
		if rand.IntN(4) == 0 {
			n = 1 + rand.Int64N(5)
			line += fmt.Sprintf(`,"n":%d`, n)
		}
		if rand.IntN(3) == 0 {
			who := fmt.Sprintf("visitor %d", rand.IntN(visitors))
			line += fmt.Sprintf(`,"unique":%q`, who)
			m.uniques = append(m.uniques, visit{name, who})
		}
		lines[i] = line + "}"
		m.hits[name] += n
	}
	if m.body = []byte(strings.Join(lines, "\n")); rand.IntN(2) == 0 {
		m.body = []byte("[" + strings.Join(lines, ",") + "]")
	}
	return m
}

// plain is a message of exactly size hits.
func (l *load) plain(size int) message {
	m := message{subject: l.subject("batch"), hits: make(map[string]int64, size)}
	for range size {
		name := l.counter(rand.IntN(l.size))
		m.body = fmt.Appendf(m.body, "{\"key\":%q}\n", name)
		m.hits[name]++
	}
	return m
}

// publish returns when the message is stored, and then counts it as published.
func (l *load) publish(ctx context.Context, m message) {
	ctx, cancel := context.WithTimeout(ctx, stack.Hung)
	defer cancel()
	if m.id == "" {
		m.id = fmt.Sprintf("%s:%d", l.prefix, l.ids.Add(1))
	}
	for {
		once, done := context.WithTimeout(ctx, time.Second)
		_, err := l.js.PublishMsg(once, &nats.Msg{Subject: m.subject, Data: m.body}, jetstream.WithMsgID(m.id))
		done()
		if err == nil {
			break
		}
		l.repeats.Add(1)
		select {
		case <-ctx.Done():
			l.t.Errorf("message %s is not acknowledged: %v", m.id, err)
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	l.messages.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, n := range m.hits {
		l.truth[name] += n
	}
	for _, v := range m.uniques {
		if l.uniques[v.counter] == nil {
			l.uniques[v.counter] = new(unique.Sketch)
		}
		l.uniques[v.counter].Add(unique.Of([]byte(v.unique)))
	}
}

// published is what each counter must have.
func (l *load) published() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.truth)
}

func (l *load) names() []string { return slices.Sorted(maps.Keys(l.published())) }

func (l *load) sum() (n int64) {
	for _, v := range l.published() {
		n += v
	}
	return n
}

// ask asks for the totals of the counters over the last day.
func (s *system) ask(keys []string) (stack.Answer, error) {
	var all stack.Answer
	for some := range slices.Chunk(keys, maxKeys) {
		var answer stack.Answer
		status, body, err := stack.Do(http.MethodPost, s.query.URL()+"/v1/total", map[string]any{"keys": some, "windows": []string{"24h"}})
		if err != nil {
			return all, err
		}
		if status != http.StatusOK {
			return all, fmt.Errorf("status %d: %s", status, body)
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			return all, err
		}
		if len(answer.Totals) != len(some) {
			return all, fmt.Errorf("%d totals for %d counters", len(answer.Totals), len(some))
		}
		if all.AsOf.IsZero() || answer.AsOf.Before(all.AsOf) {
			all.AsOf = answer.AsOf
		}
		all.Totals = append(all.Totals, answer.Totals...)
	}
	return all, nil
}

// mustAsk asks until there is an answer: query gives up after two seconds, which a busy machine can take.
func (s *system) mustAsk(keys []string) (answer stack.Answer) {
	s.t.Helper()
	stack.Eventually(s.t, "an answer about the counters", func() (bool, string) {
		var err error
		answer, err = s.ask(keys)
		return err == nil, fmt.Sprint(err)
	})
	return answer
}
