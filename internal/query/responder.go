package query

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// responder answers requests over NATS. NATS calls the handler of a subscription for one message after
// the other, so the responder gives each request a goroutine of its own.
type responder struct {
	service *service
	conn    *nats.Conn
	slots   chan struct{} // has a token for each request that is being answered

	mu    sync.Mutex
	stats []*micro.EndpointStats // what they point to; the list is complete before the first request
}

func newResponder(s *service, conn *nats.Conn) *responder {
	return &responder{service: s, conn: conn, slots: make(chan struct{}, maxConcurrent)}
}

// dispatch waits for a slot and then answers the request concurrently with others.
func (r *responder) dispatch(ctx context.Context, of *micro.EndpointStats, find endpoint, req *nats.Msg) {
	start := time.Now()
	select {
	case <-ctx.Done():
		r.record(of, r.refuse(req, web.NewProblem(http.StatusServiceUnavailable, "the service is stopping")), time.Since(start))
		return
	case r.slots <- struct{}{}:
	}
	go func() {
		defer func() { <-r.slots }()
		start := time.Now()
		err := r.answer(ctx, find, req)
		r.record(of, err, time.Since(start))
	}()
}

// wait returns when all requests under way are answered. Timeout bounds that. No request
// may be dispatched after it has been called.
func (r *responder) wait() {
	for range cap(r.slots) {
		r.slots <- struct{}{}
	}
}

// answer sends the answer or the error, which it returns too. Requests under
// way when the service stops are answered.
func (r *responder) answer(ctx context.Context, find endpoint, req *nats.Msg) (err error) {
	defer func() {
		if v := recover(); v != nil {
			r.service.log.Error().Str("subject", req.Subject).Interface("panic", fmt.Sprint(v)).Str("stack", string(debug.Stack())).Msg("request failed")
			err = r.refuse(req, web.NewProblem(http.StatusInternalServerError, "a fault of this service, which is in its log"))
		}
	}()
	out, err := find(context.WithoutCancel(ctx), req.Data)
	if err != nil {
		return r.refuse(req, web.ProblemOf(err))
	}
	data := api.Encode(out)
	if most := r.conn.MaxPayload(); int64(len(data)) > most {
		return r.refuse(req, web.NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the answer has %d bytes and the NATS server takes messages of at most %d: ask in parts", len(data), most)))
	}
	return r.conn.PublishMsg(&nats.Msg{Subject: req.Reply, Data: data})
}

// refuse sends a problem the way micro's clients expect errors, and returns it.
func (r *responder) refuse(req *nats.Msg, p *web.Problem) error {
	m := nats.NewMsg(req.Reply)
	m.Header.Set(micro.ErrorHeader, p.Detail)
	m.Header.Set(micro.ErrorCodeHeader, strconv.Itoa(p.Status))
	m.Data = api.Encode(p)
	_ = r.conn.PublishMsg(m) // a request without a reply subject gets no answer
	return p
}

// record keeps the statistics of an endpoint as micro does. A take that is refused is no error.
func (r *responder) record(of *micro.EndpointStats, err error, took time.Duration) {
	code := http.StatusOK
	if err != nil {
		code = web.ProblemOf(err).Status
	}
	r.service.server.Metrics.Observe("NATS "+of.Name, code, took)
	r.mu.Lock()
	defer r.mu.Unlock()
	of.NumRequests++
	of.ProcessingTime += took
	of.AverageProcessingTime = of.ProcessingTime / time.Duration(of.NumRequests)
	if err != nil {
		of.NumErrors++
		of.LastError = fmt.Sprintf("%d:%v", code, err)
	}
}

// statistics returns a copy.
func (r *responder) statistics() []*micro.EndpointStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*micro.EndpointStats, len(r.stats))
	for i, of := range r.stats {
		now := *of
		out[i] = &now
	}
	return out
}
