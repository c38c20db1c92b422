package query

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// responder answers requests over NATS. micro calls the handlers of an endpoint one after
// the other, so the responder gives each request a goroutine of its own. micro looks at
// its request when the handler returns, so these goroutines answer with messages of
// their own, and keep their own statistics.
type responder struct {
	service *service
	conn    *nats.Conn
	slots   chan struct{} // has a token for each request that is being answered

	mu    sync.Mutex
	stats map[string]*requestStats // by endpoint
}

// requestStats is the data of $SRV.STATS for an endpoint.
type requestStats struct {
	Answered  int64         `json:"answered"`
	Errors    int64         `json:"errors"`
	LastError string        `json:"last_error,omitempty"`
	Average   time.Duration `json:"average_ns"`
	took      time.Duration // all of them together
}

func newResponder(s *service, conn *nats.Conn) *responder {
	return &responder{service: s, conn: conn, slots: make(chan struct{}, maxConcurrent), stats: make(map[string]*requestStats)}
}

// dispatch waits for a slot and then answers the request concurrently with others.
func (r *responder) dispatch(ctx context.Context, name string, find endpoint, req micro.Request) {
	select {
	case <-ctx.Done():
		_ = r.refuse(req, newProblem(http.StatusServiceUnavailable, "the service is stopping"))
		return
	case r.slots <- struct{}{}:
	}
	go func() {
		defer func() { <-r.slots }()
		start := time.Now()
		err := r.answer(ctx, find, req)
		r.record(name, err, time.Since(start))
	}()
}

// wait returns when all requests under way are answered. answerTimeout bounds that. No request
// may be dispatched after it has been called.
func (r *responder) wait() {
	for range cap(r.slots) {
		r.slots <- struct{}{}
	}
}

// answer sends the answer or the error, which it returns too. Requests under
// way when the service stops are answered.
func (r *responder) answer(ctx context.Context, find endpoint, req micro.Request) (err error) {
	defer func() {
		if v := recover(); v != nil {
			r.service.log.Error().Str("subject", req.Subject()).Interface("panic", fmt.Sprint(v)).Str("stack", string(debug.Stack())).Msg("request failed")
			err = r.refuse(req, newProblem(http.StatusInternalServerError, "a fault of this service, which is in its log"))
		}
	}()
	out, err := find(context.WithoutCancel(ctx), req.Data())
	if err != nil {
		return r.refuse(req, problemOf(err))
	}
	data := jsonOf(out)
	if most := r.conn.MaxPayload(); int64(len(data)) > most {
		return r.refuse(req, newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the answer has %d bytes and the NATS server takes messages of at most %d: ask in parts", len(data), most)))
	}
	return r.conn.PublishMsg(&nats.Msg{Subject: req.Reply(), Data: data})
}

// refuse sends a problem the way micro's clients expect errors, and returns it.
func (r *responder) refuse(req micro.Request, p *problem) error {
	m := nats.NewMsg(req.Reply())
	m.Header.Set(micro.ErrorHeader, p.Detail)
	m.Header.Set(micro.ErrorCodeHeader, strconv.Itoa(p.Status))
	m.Data = jsonOf(p)
	_ = r.conn.PublishMsg(m) // a request without a reply subject gets no answer
	return p
}

// record keeps the statistics of an endpoint.
func (r *responder) record(name string, err error, took time.Duration) {
	code := http.StatusOK
	if err != nil {
		code = problemOf(err).Status
	}
	r.service.metrics.requestSeconds.WithLabelValues("NATS "+name, strconv.Itoa(code)).Observe(took.Seconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.stats[name]
	if st == nil {
		st = &requestStats{}
		r.stats[name] = st
	}
	st.Answered++
	st.took += took
	st.Average = st.took / time.Duration(st.Answered)
	if err != nil {
		st.Errors++
		st.LastError = err.Error()
	}
}

func (r *responder) statistics(e *micro.Endpoint) any {
	r.mu.Lock()
	defer r.mu.Unlock()
	if st := r.stats[e.Name]; st != nil {
		return *st
	}
	return requestStats{}
}
