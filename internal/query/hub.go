package query

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/wake"
	"tallyroll/internal/window"
)

// liveEvery is the pause between two reads for the listeners, who hear of at most four
// changes per second.
const liveEvery = 250 * time.Millisecond

// hub reads for all clients that listen at /v1/live: one pipelined read every liveEvery
// answers every distinct question, however many clients listen. One goroutine, run,
// reads and tells the listeners. It sleeps while nobody listens.
type hub struct {
	read                     readTotals
	maxClients, maxQuestions int
	reads                    prometheus.Counter

	heard wake.Signal // somebody listens

	mu        sync.Mutex
	topics    map[liveQuestion]*topic
	listeners map[*listener]struct{}
	stopped   bool
}

// readTotals answers questions at one moment. Its errors are for the clients.
type readTotals func(ctx context.Context, questions []window.Question) (window.Answers, error)

// liveQuestion is a counter and a window that ends now.
type liveQuestion struct{ key, window string }

// topic is a question and the listeners who want its answer.
type topic struct {
	question liveQuestion
	length   time.Duration
	last     *news // what the listeners were told; nil before the first answer. Only run sets it, under hub.mu
	// listeners have the question at these places in their lists.
	listeners map[*listener]int
}

// news is an answer, or the reason why there is none now.
type news struct {
	id    string // the same for the same counts
	total total
	err   error
	text  []byte // the event, made once for all who hear it
}

func newHub(read readTotals, maxClients, maxQuestions int, m *metrics) *hub {
	h := &hub{
		read: read, maxClients: maxClients, maxQuestions: maxQuestions, reads: m.liveReads,
		heard: wake.New(), topics: make(map[liveQuestion]*topic), listeners: make(map[*listener]struct{}),
	}
	m.registerLive(h.sizes)
	return h
}

// run reads and tells until ctx ends, and then lets all listeners go.
func (h *hub) run(ctx context.Context) error {
	defer h.stop()
	ticker := time.NewTicker(liveEvery)
	defer ticker.Stop()
	for {
		if clients, _ := h.sizes(); clients == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-h.heard:
				ticker.Reset(liveEvery)
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

// join adds a listener, which must leave. Its errors are for the client. Nobody asks a
// question twice.
func (h *hub) join(asked []liveQuestion, lengths []time.Duration, asOf bool) (*listener, error) {
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
		return nil, noRoom(fmt.Sprintf("clients are listening to %d different questions already, and this would add %d: the most allowed are %d (QUERY_LIVE_QUESTIONS)",
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

// noRoom is the 503 for a client that cannot listen now.
func noRoom(detail string) error { return retryLater(detail, "5") }

func (h *hub) leave(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.listeners, l)
	for _, t := range l.topics {
		delete(t.listeners, l)
		if len(t.listeners) == 0 && h.topics[t.question] == t {
			delete(h.topics, t.question)
		}
	}
}

// sizes are the numbers of clients and of distinct questions.
func (h *hub) sizes() (clients, questions int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.listeners), len(h.topics)
}

// tellAll answers all questions at one moment and tells the listeners what is new.
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
			t.hear(newsOf(totalOf(t.question.key, t.question.window, found.Answers[i])), changes)
		}
		if err == nil {
			reach = reachEvent(found.AsOf, found.Now)
		}
		break
	}
	h.tell(changes, reach)
}

// hear adds to the changes what is new to the listeners of the topic. run reads last
// without the lock, because nobody else sets it.
func (t *topic) hear(n *news, changes map[*topic]*news) {
	if t.last != nil && t.last.id == n.id && (t.last.err == nil) == (n.err == nil) {
		return
	}
	n.text = n.event()
	changes[t] = n
}

func newsOf(t total) *news {
	return &news{id: fmt.Sprintf("%d-%d-%d-%t", t.Total, t.Lower, t.Upper, t.Complete), total: t}
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

// tell gives the changes to the listeners. reach is the event as_of, nil if Redis has not answered.
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
