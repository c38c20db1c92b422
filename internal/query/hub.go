package query

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/window"
)

// liveEvery is the pause between two reads for the listeners: they are told of
// at most four changes a second.
const liveEvery = 250 * time.Millisecond

// hub reads for all who listen at /v1/live: one pipelined read every liveEvery
// answers every distinct question, however many listen. One goroutine, run,
// reads and tells; it sleeps while nobody listens.
type hub struct {
	reader                   reader
	read                     func(ctx context.Context, questions []window.Question) (window.Answers, error)
	maxClients, maxQuestions int
	reads                    prometheus.Counter

	wake chan struct{} // holds one: somebody listens

	mu      sync.Mutex
	topics  map[liveQuestion]*topic
	clients int
	closed  bool
}

// liveQuestion is a counter and a window that ends now.
type liveQuestion struct{ key, window string }

// topic is a question and those who want its answer.
type topic struct {
	question  liveQuestion
	length    time.Duration
	last      *news // what the listeners were told; nil before the first answer
	listeners map[*listener]struct{}
}

// news is an answer, or why there is none now.
type news struct {
	id    string // the same for the same counts
	total total
	err   error
}

// listener is one client. It finds the latest news in its channel, which holds
// one: what a slow client has not taken is replaced, and holds nobody up. The
// channel is closed when the service stops.
type listener struct {
	topic *topic
	news  chan *news
}

func newHub(m *metrics) *hub {
	h := &hub{maxClients: 10_000, maxQuestions: 500, reads: m.liveReads, wake: make(chan struct{}, 1), topics: make(map[liveQuestion]*topic)}
	m.registerLive(h.counts)
	return h
}

// run reads and tells until ctx ends, then lets all listeners go.
func (h *hub) run(ctx context.Context) error {
	defer h.close()
	ticker := time.NewTicker(liveEvery)
	defer ticker.Stop()
	for {
		if clients, _ := h.counts(); clients == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-h.wake:
				ticker.Reset(liveEvery)
			}
		}
		h.tick(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// join adds a listener, which must leave. Its errors are for the client.
func (h *hub) join(q liveQuestion, length time.Duration) (*listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	switch {
	case h.closed:
		return nil, busy("the service is stopping")
	case h.clients >= h.maxClients:
		return nil, busy(fmt.Sprintf("%d clients listen already, as many as are allowed (QUERY_LIVE_CLIENTS)", h.clients))
	case t == nil && len(h.topics) >= h.maxQuestions:
		return nil, busy(fmt.Sprintf("%d different questions are listened to already, as many as are allowed (QUERY_LIVE_QUESTIONS)", len(h.topics)))
	case t == nil:
		t = &topic{question: q, length: length, listeners: make(map[*listener]struct{})}
		h.topics[q] = t
	}
	l := &listener{topic: t, news: make(chan *news, 1)}
	t.listeners[l] = struct{}{}
	h.clients++
	if t.last != nil {
		l.news <- t.last
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
	return l, nil
}

// busy is the 503 for a client that there is no room for.
func busy(detail string) error {
	return huma.ErrorWithHeaders(newProblem(http.StatusServiceUnavailable, detail), http.Header{"Retry-After": {"5"}})
}

func (h *hub) leave(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients--
	delete(l.topic.listeners, l)
	if len(l.topic.listeners) == 0 && h.topics[l.topic.question] == l.topic {
		delete(h.topics, l.topic.question)
	}
}

// counts are the clients and the distinct questions.
func (h *hub) counts() (clients, questions int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clients, len(h.topics)
}

// tick answers all questions at one moment.
func (h *hub) tick(ctx context.Context) {
	topics := h.current()
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
			h.tell(topics[bad.Index], &news{err: err})
			topics = slices.Delete(topics, bad.Index, bad.Index+1)
			continue
		}
		for i, t := range topics {
			if err != nil {
				h.tell(t, &news{err: err})
				continue
			}
			h.tell(t, newsOf(totalOf(t.question.key, t.question.window, found.Answers[i])))
		}
		return
	}
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

// tell gives what is new to the listeners of a topic.
func (h *hub) tell(t *topic, n *news) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || t.last != nil && t.last.id == n.id && (t.last.err == nil) == (n.err == nil) {
		return
	}
	t.last = n
	for l := range t.listeners {
		select {
		case <-l.news: // not taken yet, and old now
		default:
		}
		l.news <- n // there is room: nobody else sends, but under this lock
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, t := range h.topics {
		for l := range t.listeners {
			close(l.news)
		}
	}
}
