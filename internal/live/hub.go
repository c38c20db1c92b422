package live

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/answer"
	"tallyroll/internal/wake"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

// readEvery is the pause between two reads, so clients get at most four changes per second.
const readEvery = 250 * time.Millisecond

// hub reads for all clients of /v1/live: one pipelined read every readEvery answers every distinct question.
// One goroutine, serve, reads and notifies the listeners. It sleeps without
// listeners. Connections and questions are bounded; beyond a bound, new ones are refused.
type hub struct {
	read                     readTotals
	maxClients, maxQuestions int
	writeWithin              time.Duration // how long a client may leave unread what is sent
	reads                    prometheus.Counter

	heard wake.Signal // there is a listener

	mu        sync.Mutex
	topics    map[question]*topic
	listeners map[*listener]struct{}
	stopped   bool
}

// readTotals answers questions at one moment. Its errors are for the clients.
type readTotals func(ctx context.Context, questions []window.Question) (window.Answers, error)

type question struct{ key, window string }

type topic struct {
	question question
	length   time.Duration
	last     *news // what the listeners have; nil before the first answer. Only serve sets it, under hub.mu
	// listeners map to the question's index in their lists.
	listeners map[*listener]int
}

// news is an answer, or the reason why there is none now.
type news struct {
	id    string // the same for the same counts
	total answer.Total
	err   error
	text  []byte // the event, made once for all who hear it
}

// newHub returns a hub. The caller must run it.
func newHub(read readTotals, maxClients, maxQuestions int, registry prometheus.Registerer) *hub {
	h := &hub{
		read: read, maxClients: maxClients, maxQuestions: maxQuestions, writeWithin: writeTimeout, reads: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_reads_total",
			Help: "Reads of Redis for all who listen at /v1/live together.",
		}),
		heard: wake.New(), topics: make(map[question]*topic), listeners: make(map[*listener]struct{}),
	}
	registry.MustRegister(h.reads,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_clients", Help: "Clients that listen at /v1/live.",
		}, func() float64 { clients, _ := h.sizes(); return float64(clients) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "tallyroll", Subsystem: "query", Name: "live_questions", Help: "Distinct questions of the clients that listen at /v1/live.",
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
			case <-h.heard:
				ticker.Reset(readEvery)
			}
		}
		h.tellAll(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// join adds a listener, which must leave. Its errors are for the client. asked has no duplicates.
func (h *hub) join(asked []question, lengths []time.Duration, asOf bool) (*listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return nil, noRoom("the service is stopping")
	}
	if len(h.listeners) >= h.maxClients {
		return nil, noRoom(fmt.Sprintf("%d clients are listening already, which is the most allowed (QUERY_LIVE_CLIENTS)", len(h.listeners)))
	}
	added := 0
	for _, q := range asked {
		if h.topics[q] == nil {
			added++
		}
	}
	if len(h.topics)+added > h.maxQuestions {
		return nil, noRoom(fmt.Sprintf("clients are listening to %d different questions already, and this would add %d: the most allowed are %d (QUERY_LIVE_QUESTIONS): ask about fewer counters or windows",
			len(h.topics), added, h.maxQuestions))
	}
	l := newListener(h, len(asked), asOf)
	for i, q := range asked {
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
	h.heard.Give()
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

// tellAll answers all questions at one moment and notifies the listeners of what is new.
func (h *hub) tellAll(ctx context.Context) {
	topics := h.current()
	changes := make(map[*topic]*news)
	var reach []byte
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
		if errors.As(err, &bad) { // the others can be answered without it
			topics[bad.Index].hear(&news{err: err}, changes)
			topics = slices.Delete(topics, bad.Index, bad.Index+1)
			continue
		}
		for i, t := range topics {
			if err != nil {
				t.hear(&news{err: err}, changes)
				continue
			}
			t.hear(newsOf(answer.TotalOf(t.question.key, t.question.window, found.Answers[i], found.AsOf)), changes)
		}
		if err == nil {
			reach = reachEvent(found.AsOf, found.Now)
		}
		break
	}
	h.tell(changes, reach)
}

// hear adds news to the changes if it differs. It reads last without the lock, because only serve sets last.
func (t *topic) hear(n *news, changes map[*topic]*news) {
	if t.last != nil && t.last.like(n) {
		return
	}
	n.text = n.event()
	changes[t] = n
}

// like reports whether both are the same for a listener. Problems are if they have the same status: one that
// the client must fix may follow a temporary one.
func (n *news) like(other *news) bool {
	if n.err == nil || other.err == nil {
		return n.id == other.id && n.err == nil && other.err == nil
	}
	return n.problem().Status == other.problem().Status
}

// problem is why there is no answer now. A question that the client must fix has one only if it could be
// answered before: until then firstNews returns its error.
func (n *news) problem() *web.Problem {
	if bad := answer.ClientError(n.err); bad != nil {
		return web.NewProblem(http.StatusBadRequest, bad.Error())
	}
	return web.ProblemOf(n.err)
}

func newsOf(t answer.Total) *news {
	return &news{id: fmt.Sprintf("%d-%d-%s-%t", t.Total, t.Lower, t.Upper, t.Complete), total: t}
}

func (h *hub) current() []*topic {
	h.mu.Lock()
	defer h.mu.Unlock()
	topics := make([]*topic, 0, len(h.topics))
	for _, t := range h.topics {
		topics = append(topics, t)
	}
	return topics
}

// tell passes the changes to the listeners. reach is the event as_of, nil if Redis has not answered.
func (h *hub) tell(changes map[*topic]*news, reach []byte) {
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
	if reach == nil {
		return
	}
	for l := range h.listeners {
		l.putReach(reach)
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

// reachTicks is the number of reads between events as_of: one second.
const reachTicks = 4

// listener is one client. Only the latest news of each question waits, so nobody waits for a slow client.
type listener struct {
	hub    *hub
	topics []*topic
	asOf   bool // it wants events as_of, too
	// ready has a value while anything waits. The hub closes it when the service stops.
	ready chan struct{}

	// Under hub.mu:
	waiting []*news // by the question's index in topics; nil if there is nothing new
	reach   []byte  // the event as_of that waits
	ticks   int     // reads since it joined
}

func newListener(h *hub, questions int, asOf bool) *listener {
	return &listener{
		hub: h, asOf: asOf, topics: make([]*topic, questions), waiting: make([]*news, questions), ready: make(chan struct{}, 1),
	}
}

// put replaces the waiting news of a question. The caller holds hub.mu.
func (l *listener) put(i int, n *news) {
	l.waiting[i] = n
	l.give()
}

// putReach is called for every read, and keeps every fourth if the client wants any. The caller holds hub.mu.
func (l *listener) putReach(event []byte) {
	if l.asOf && l.ticks%reachTicks == 0 {
		l.reach = event
		l.give()
	}
	l.ticks++
}

func (l *listener) give() {
	select {
	case l.ready <- struct{}{}:
	default: // it was signalled and has not come yet
	}
}

func (l *listener) events() []byte {
	l.hub.mu.Lock()
	found, reach := l.takeLocked(), l.reach
	l.reach = nil
	l.hub.mu.Unlock()
	var out []byte
	for _, n := range found {
		if n != nil {
			out = append(out, n.text...)
		}
	}
	return append(out, reach...)
}

// firstNews waits for the first answer to every question, so that one without is refused with a status.
func (l *listener) firstNews(ctx context.Context) ([]*news, error) {
	first := make([]*news, len(l.topics))
	for slices.Contains(first, nil) {
		select {
		case <-ctx.Done():
			return nil, web.ClientGone()
		case _, ok := <-l.ready:
			if !ok {
				return nil, noRoom("the service is stopping")
			}
		}
		for i, n := range l.take() {
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

// noRoom is the 503 for a client that cannot listen now.
func noRoom(detail string) error { return web.RetryLater(detail, "5") }

func (l *listener) take() []*news {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	return l.takeLocked()
}

func (l *listener) takeLocked() []*news {
	found := l.waiting
	l.waiting = make([]*news, len(l.topics))
	return found
}
