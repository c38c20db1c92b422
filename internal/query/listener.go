package query

import (
	"context"
	"slices"
	"tallyroll/internal/answer"
	"tallyroll/internal/web"
)

// reachTicks is how many reads pass from one event as_of to the next: one second.
const reachTicks = 4

// listener is one client with its questions. What it has not taken yet waits here, of
// each question only the latest news, so nobody has to wait for a slow client.
type listener struct {
	hub    *hub
	who    string // whose it is
	topics []*topic
	asOf   bool // it wants events as_of, too
	// ready has something to receive while anything waits. The hub closes it when the service stops, or when the
	// listener has to make room.
	ready    chan struct{}
	farewell []byte // what is sent then; set before ready closes

	// Under hub.mu:
	waiting []*news // by the question's place in topics; nil if there is nothing new
	reach   []byte  // the event as_of that waits
	ticks   int     // reads since it joined
}

func newListener(h *hub, questions int, asOf bool) *listener {
	return &listener{
		hub: h, asOf: asOf, topics: make([]*topic, questions), waiting: make([]*news, questions), ready: make(chan struct{}, 1),
	}
}

// put replaces what waits about a question. The caller holds hub.mu.
func (l *listener) put(i int, n *news) {
	l.waiting[i] = n
	l.give()
}

// putReach is told of every read, and lets every fourth one through if the client wants any. The caller holds hub.mu.
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
	default: // it has been told and has not come yet
	}
}

// take returns what is new, by the question's place.
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

// events is what is new as the protocol writes it.
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

// firstNews waits for the first answer to every question, so that a question without an
// answer is refused with a status like any other.
func (l *listener) firstNews(ctx context.Context) ([]*news, error) {
	first := make([]*news, len(l.topics))
	for slices.Contains(first, nil) {
		select {
		case <-ctx.Done():
			return nil, web.ClientGone()
		case _, ok := <-l.ready:
			if !ok {
				return nil, noRoom("the service is stopping, or others need the room")
			}
		}
		for i, n := range l.take() {
			if n == nil {
				continue
			}
			if bad := answer.Mendable(n.err); bad != nil {
				return nil, web.BadInput("window", "%s: %v", l.topics[i].question.window, bad).In(web.InQuery)
			}
			if n.err != nil {
				return nil, n.err
			}
			first[i] = n
		}
	}
	return first, nil
}
