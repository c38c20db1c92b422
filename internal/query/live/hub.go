package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/platform/wait"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

// readEvery is the pause between two reads, so clients get at most four changes per second.
const readEvery = 250 * time.Millisecond

// writeTimeout is how long a client may leave data unread before it is dropped.
const writeTimeout = 10 * time.Second

// hub reads for all clients of /v1/live: one pipelined read every readEvery answers every distinct question.
// One goroutine, serve, reads and notifies the listeners. It sleeps without listeners.
type hub struct {
	read                     readTotals
	maxClients, maxQuestions int
	writeWithin              time.Duration // how long a client may leave unread what is sent
	reads                    prometheus.Counter

	joined wait.Signal // a listener has joined

	mu        sync.Mutex
	topics    map[question]*topic
	listeners map[*listener]struct{}
	stopped   bool
}

// readTotals answers questions at one moment. Its errors are for the clients.
type readTotals func(ctx context.Context, questions []window.Question) (window.Answers, error)

type question struct{ key, window string }

// topic is a question that clients listen to.
type topic struct {
	question question
	length   time.Duration
	last     *result // as the listeners got it; nil before the first answer. Only serve sets it, under hub.mu
	// listeners map to the question's index in their lists.
	listeners map[*listener]int
}

// newHub returns a hub. The caller must run it.
func newHub(read readTotals, maxClients, maxQuestions int, registry prometheus.Registerer) *hub {
	h := &hub{
		read: read, maxClients: maxClients, maxQuestions: maxQuestions, writeWithin: writeTimeout,
		reads: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_reads_total",
			Help: "Reads of Redis for all clients of /v1/live together.",
		}),
		joined: wait.NewSignal(), topics: make(map[question]*topic), listeners: make(map[*listener]struct{}),
	}
	registry.MustRegister(h.reads,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_clients", Help: "Clients that listen at /v1/live.",
		}, func() float64 { clients, _ := h.sizes(); return float64(clients) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_questions", Help: "Distinct questions of the " +
				"clients that listen at /v1/live.",
		}, func() float64 { _, questions := h.sizes(); return float64(questions) }),
	)
	return h
}

// serve reads and notifies until ctx ends, and then closes all listeners.
func (h *hub) serve(ctx context.Context) error {
	defer h.stop()
	ticker := time.NewTicker(readEvery)
	defer ticker.Stop()
	for {
		if clients, _ := h.sizes(); clients == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-h.joined:
				ticker.Reset(readEvery)
			}
		}
		h.answerAll(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// join adds a listener, which must leave. Its errors are for the client. asked has no duplicates.
func (h *hub) join(questions []question, lengths []time.Duration, asOf bool) (*listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return nil, refuseClient("the service is stopping")
	}
	if len(h.listeners) >= h.maxClients {
		return nil, refuseClient(fmt.Sprintf("%d clients are listening already, which is the most allowed "+
			"(QUERY_LIVE_CLIENTS)", len(h.listeners)))
	}
	added := 0
	for _, q := range questions {
		if h.topics[q] == nil {
			added++
		}
	}
	if len(h.topics)+added > h.maxQuestions {
		return nil, refuseClient(fmt.Sprintf("clients are listening to %d different questions already, and this would "+
			"add %d: at most %d are allowed (QUERY_LIVE_QUESTIONS): ask about fewer counters or windows",
			len(h.topics), added, h.maxQuestions))
	}
	l := newListener(h, len(questions), asOf)
	for i, q := range questions {
		t := h.topics[q]
		if t == nil {
			t = &topic{question: q, length: lengths[i], listeners: make(map[*listener]int)}
			h.topics[q] = t
		}
		t.listeners[l], l.topics[i] = i, t
		if t.last != nil {
			l.put(i, t.last)
		}
	}
	h.listeners[l] = struct{}{}
	h.joined.Give()
	return l, nil
}

func (h *hub) leave(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.listeners, l)
	for _, t := range l.topics {
		delete(t.listeners, l)
		if len(t.listeners) == 0 {
			delete(h.topics, t.question)
		}
	}
}

// sizes returns the numbers of clients and of distinct questions.
func (h *hub) sizes() (clients, questions int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.listeners), len(h.topics)
}

// answerAll answers all questions at one moment and notifies the listeners of what is new.
func (h *hub) answerAll(ctx context.Context) {
	topics := h.currentTopics()
	changes := make(map[*topic]*result)
	var asOf []byte
	for len(topics) > 0 {
		questions := make([]window.Question, len(topics))
		for i, t := range topics {
			questions[i] = window.Question{Counter: t.question.key, Span: window.Last(t.length)}
		}
		h.reads.Inc()
		found, err := h.read(ctx, questions)
		if ctx.Err() != nil {
			return
		}
		var bad *window.QuestionError
		if errors.As(err, &bad) { // the other questions can be answered without it
			topics[bad.Index].addChange(&result{err: err}, changes)
			topics = slices.Delete(topics, bad.Index, bad.Index+1)
			continue
		}
		for i, t := range topics {
			if err != nil {
				t.addChange(&result{err: err}, changes)
				continue
			}
			t.addChange(newResult(answer.TotalOf(t.question.key, t.question.window, found.Answers[i], found.AsOf)),
				changes)
		}
		if err == nil {
			asOf = asOfEvent(found.AsOf, found.Now)
		}
		break
	}
	h.notify(changes, asOf)
}

// addChange adds news to the changes if it differs. It reads last without the lock, because only serve sets
// last.
func (t *topic) addChange(n *result, changes map[*topic]*result) {
	if t.last != nil && t.last.sameAs(n) {
		return
	}
	n.text = n.event()
	changes[t] = n
}

// result is an answer, or the error in its place.
type result struct {
	id    string // the same for the same counts
	total answer.Total
	err   error
	text  []byte // the event, encoded once for all listeners
}

func newResult(t answer.Total) *result {
	return &result{id: fmt.Sprintf("%d-%d-%s-%t", t.Total, t.Lower, t.Upper, t.Complete), total: t}
}

// sameAs reports whether both are the same for a listener. Problems are the same if they have the same
// status: one that the client must fix may follow a temporary one.
func (n *result) sameAs(other *result) bool {
	if n.err == nil || other.err == nil {
		return n.id == other.id && n.err == nil && other.err == nil
	}
	return n.problem().Status == other.problem().Status
}

// problem returns why the answer is missing. A question that the client must fix has a problem only if it
// could be answered before: until then firstResults returns its error.
func (n *result) problem() *web.Problem {
	if bad := answer.ClientError(n.err); bad != nil {
		return web.NewProblem(http.StatusBadRequest, bad.Error())
	}
	return web.ProblemOf(n.err)
}

func (n *result) event() []byte {
	if n.err != nil {
		return fmt.Appendf(nil, "event: problem\ndata: %s\n\n", api.Encode(n.problem()))
	}
	return fmt.Appendf(nil, "id: %s\nevent: total\ndata: %s\n\n", n.id, api.Encode(n.total))
}

type asOfData struct {
	AsOf time.Time `json:"as_of"`
	Now  time.Time `json:"now"`
}

// asOfEvent returns the event as_of, from two moments in Unix milliseconds.
func asOfEvent(asOf, now int64) []byte {
	return fmt.Appendf(nil, "event: as_of\ndata: %s\n\n", api.Encode(asOfData{answer.Time(asOf), answer.Time(now)}))
}

func (h *hub) currentTopics() []*topic {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.topics))
}

// notify passes the changes to the listeners. asOf is the event as_of, nil if Redis has not answered.
func (h *hub) notify(changes map[*topic]*result, asOf []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return
	}
	for t, n := range changes {
		t.last = n
		for l, i := range t.listeners {
			l.put(i, n)
		}
	}
	if asOf == nil {
		return
	}
	for l := range h.listeners {
		l.putAsOf(asOf)
	}
}

func (h *hub) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	for l := range h.listeners {
		close(l.ready)
	}
}

// asOfTicks is the number of reads between events as_of: one second.
const asOfTicks = 4

// listener is one client. Only the latest result of each question waits, so a slow client delays no other.
type listener struct {
	hub    *hub
	topics []*topic
	asOf   bool // the client also gets events as_of
	// ready has a value while anything waits. The hub closes it when the service stops.
	ready wait.Signal

	// Under hub.mu:
	waiting   []*result // by the question's index in topics; nil if nothing has changed
	asOfEvent []byte    // the event as_of that waits
	ticks     int       // reads since it joined
}

func newListener(h *hub, questions int, asOf bool) *listener {
	return &listener{
		hub: h, asOf: asOf, topics: make([]*topic, questions), waiting: make([]*result, questions),
		ready: wait.NewSignal(),
	}
}

// put replaces the waiting news of a question. The caller holds hub.mu.
func (l *listener) put(i int, n *result) {
	l.waiting[i] = n
	l.ready.Give()
}

// putAsOf is called for every read, and keeps every fourth if the client gets events as_of. The caller holds
// hub.mu.
func (l *listener) putAsOf(event []byte) {
	if l.asOf && l.ticks%asOfTicks == 0 {
		l.asOfEvent = event
		l.ready.Give()
	}
	l.ticks++
}

// events returns the waiting events as text.
func (l *listener) events() []byte {
	l.hub.mu.Lock()
	found, reach := l.drainLocked(), l.asOfEvent
	l.asOfEvent = nil
	l.hub.mu.Unlock()
	var out []byte
	for _, n := range found {
		if n != nil {
			out = append(out, n.text...)
		}
	}
	return append(out, reach...)
}

// firstResults waits for the first answer to every question, so that a question without one is refused with a
// status.
func (l *listener) firstResults(ctx context.Context) ([]*result, error) {
	first := make([]*result, len(l.topics))
	for slices.Contains(first, nil) {
		select {
		case <-ctx.Done():
			return nil, web.ClientGone()
		case _, ok := <-l.ready:
			if !ok {
				return nil, refuseClient("the service is stopping")
			}
		}
		for i, n := range l.drain() {
			if n == nil {
				continue
			}
			if bad := answer.ClientError(n.err); bad != nil {
				return nil, web.BadInput("window", "%s: %v", l.topics[i].question.window, bad).Problem(web.InQuery)
			}
			if n.err != nil {
				return nil, n.err
			}
			first[i] = n
		}
	}
	return first, nil
}

// refuseClient is the 503 for a client that cannot listen now.
func refuseClient(detail string) error { return web.RetryLater(detail, "5") }

func (l *listener) drain() []*result {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	return l.drainLocked()
}

func (l *listener) drainLocked() []*result {
	found := l.waiting
	l.waiting = make([]*result, len(l.topics))
	return found
}
