package query

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tallyroll/internal/boot"
)

const (
	// serviceName is what `nats micro ls` shows.
	serviceName = "tallyroll"
	// mostRequests is how many requests are answered at a time; others wait in
	// the client's buffer.
	mostRequests = 64
	// mostWaiting bounds that buffer; what does not fit is not answered.
	mostWaiting = 10_000
)

// endpoint answers the body of a request with something to encode as JSON.
type endpoint func(ctx context.Context, body []byte) (any, error)

// endpoints are the names of what is answered over NATS.
func (s *service) endpoints() map[string]endpoint {
	return map[string]endpoint{
		"total":    s.requestTotal,
		"series":   s.requestSeries,
		"top":      s.requestTop,
		"counters": s.requestCounters,
	}
}

func (s *service) requestTotal(ctx context.Context, body []byte) (any, error) {
	var in totalBody
	if err := decodeRequest(body, &in); err != nil {
		return nil, err
	}
	out, err := s.total(ctx, in.ask())
	if err != nil {
		return nil, err
	}
	return out.Body, nil
}

// seriesBody has the names of the parameters of GET /v1/series.
type seriesBody struct {
	Key  oneOrMany `json:"key"`
	From moment    `json:"from"`
	To   moment    `json:"to"`
	Step string    `json:"step"`
}

// oneOrMany is a string or a list of them.
type oneOrMany []string

// UnmarshalJSON reads either.
func (o *oneOrMany) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil && string(data) != "null" {
		*o = oneOrMany{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(o))
}

func (s *service) requestSeries(ctx context.Context, body []byte) (any, error) {
	var in seriesBody
	if err := decodeRequest(body, &in); err != nil {
		return nil, err
	}
	found, err := s.findSeries(ctx, &seriesAsk{in: "body", keys: in.Key, from: in.From, to: in.To, step: in.Step})
	if err != nil {
		return nil, err
	}
	return seriesJSON(in.Key, found), nil
}

func (s *service) requestTop(ctx context.Context, body []byte) (any, error) {
	var in topParams
	if err := decodeRequest(body, &in); err != nil {
		return nil, err
	}
	return s.findTop(ctx, "body", &in)
}

func (s *service) requestCounters(ctx context.Context, body []byte) (any, error) {
	var in countersParams
	if err := decodeRequest(body, &in); err != nil {
		return nil, err
	}
	return s.findCounters(ctx, "body", &in)
}

func decodeRequest(body []byte, into any) error {
	if p := checkBody(body); p != nil {
		return p
	}
	if err := decodeBody(body, into); err != nil {
		return newProblem(http.StatusBadRequest, err.Error())
	}
	return nil
}

// plainSubject reports whether a namespace can begin a subject.
func plainSubject(ns string) bool {
	return !strings.HasPrefix(ns, ".") && !strings.HasSuffix(ns, ".") && !strings.Contains(ns, "..")
}

// responder answers requests. micro calls the handlers of an endpoint one after
// the other, so each request goes to a goroutine of its own; and micro looks at
// its own request when the handler returns, so these goroutines answer with
// messages of their own and keep their own statistics.
type responder struct {
	service *service
	conn    *nats.Conn
	busy    chan struct{} // a place for every request that is being answered

	mu    sync.Mutex
	stats map[string]*requestStats
}

// requestStats is the data of $SRV.STATS for an endpoint.
type requestStats struct {
	Answered  int64         `json:"answered"`
	Errors    int64         `json:"errors"`
	LastError string        `json:"last_error,omitempty"`
	Average   time.Duration `json:"average_ns"`
	took      time.Duration
}

// serveNATS answers requests at <namespace>.<endpoint> until ctx ends. All
// query processes of a namespace share them (a queue group).
func (s *service) serveNATS(ctx context.Context, settings boot.NATS, namespace string) error {
	closed := make(chan struct{})
	conn, err := settings.Connect(ctx, "tallyroll query", s.log, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	r := &responder{service: s, conn: conn, busy: make(chan struct{}, mostRequests), stats: make(map[string]*requestStats)}
	offered, err := r.offer(ctx, namespace)
	if err != nil {
		conn.Close()
		return fmt.Errorf("offer the service %s on NATS: %w", serviceName, err)
	}
	s.log.Info().Str("server", boot.NATSServer(conn)).Str("subjects", namespace+".*").Msg("answering on NATS")
	<-ctx.Done()
	_ = offered.Stop() // an error is one of the connection, which ends now
	for range cap(r.busy) {
		r.busy <- struct{}{} // all that was begun is answered, within answerTimeout
	}
	if conn.Drain() != nil {
		conn.Close()
	}
	select {
	case <-closed:
	case <-time.After(answerTimeout):
		conn.Close()
	}
	return nil
}

func (r *responder) offer(ctx context.Context, namespace string) (micro.Service, error) {
	offered, err := micro.AddService(r.conn, micro.Config{
		Name: serviceName, Version: semanticVersion(boot.Version()), Description: "Rolling totals of counters",
		Metadata: map[string]string{"namespace": namespace}, QueueGroup: serviceName, StatsHandler: r.statistics,
	})
	if err != nil {
		return nil, err
	}
	group := offered.AddGroup(namespace)
	for name, answer := range r.service.endpoints() {
		err := group.AddEndpoint(name, micro.HandlerFunc(func(req micro.Request) { r.accept(ctx, name, answer, req) }),
			micro.WithEndpointPendingLimits(mostWaiting, mostWaiting*1024))
		if err != nil {
			_ = offered.Stop()
			return nil, err
		}
	}
	return offered, nil
}

var semantic = regexp.MustCompile(`^v?(\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?)$`)

// semanticVersion is a version as micro wants it; a revision follows 0.0.0.
func semanticVersion(version string) string {
	if m := semantic.FindStringSubmatch(version); m != nil {
		return m[1]
	}
	return "0.0.0-r" + regexp.MustCompile(`[^0-9A-Za-z-]`).ReplaceAllString(version, "-")
}

// accept waits for a place and answers the request beside others.
func (r *responder) accept(ctx context.Context, name string, answer endpoint, req micro.Request) {
	select {
	case <-ctx.Done():
		r.refuse(req, newProblem(http.StatusServiceUnavailable, "the service is stopping"))
		return
	case r.busy <- struct{}{}:
	}
	go func() {
		defer func() { <-r.busy }()
		start := time.Now()
		err := r.answer(ctx, answer, req)
		r.count(name, err, time.Since(start))
	}()
}

// answer sends the answer or the error, which it returns too. Requests under
// way when the service stops are answered.
func (r *responder) answer(ctx context.Context, answer endpoint, req micro.Request) (failed error) {
	defer func() {
		if v := recover(); v != nil {
			r.service.log.Error().Str("subject", req.Subject()).Interface("panic", fmt.Sprint(v)).Str("stack", string(debug.Stack())).Msg("request failed")
			failed = r.refuse(req, newProblem(http.StatusInternalServerError, "a fault of this service, which is in its log"))
		}
	}()
	out, err := answer(context.WithoutCancel(ctx), req.Data())
	if err != nil {
		return r.refuse(req, problemOf(err))
	}
	data, err := json.Marshal(out)
	if err != nil {
		panic(err) // it is made of our own types
	}
	if most := r.conn.MaxPayload(); int64(len(data)) > most {
		return r.refuse(req, newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the answer has %d bytes and the NATS server takes messages of at most %d: ask in parts", len(data), most)))
	}
	return r.conn.PublishMsg(&nats.Msg{Subject: req.Reply(), Data: data})
}

// refuse sends a problem the way micro's clients expect errors.
func (r *responder) refuse(req micro.Request, p *problem) error {
	data, err := json.Marshal(p)
	if err != nil {
		panic(err) // it is made of our own types
	}
	m := nats.NewMsg(req.Reply())
	m.Header.Set(micro.ErrorHeader, p.Detail)
	m.Header.Set(micro.ErrorCodeHeader, strconv.Itoa(p.Status))
	m.Data = data
	_ = r.conn.PublishMsg(m) // whoever asked without a place for answers gets none
	return p
}

// count keeps the statistics of an endpoint.
func (r *responder) count(name string, err error, took time.Duration) {
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
