package query

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/release"
	"tallyroll/internal/platform/trace"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/fresh"
	"tallyroll/internal/query/limitapi"
	"tallyroll/internal/query/status"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

const (
	// serviceName is what `nats micro ls` shows.
	serviceName = "tallyroll"
	// maxConcurrent bounds the requests that are answered at a time. Others wait in the NATS client's buffer.
	maxConcurrent = 64
	// maxPending bounds that buffer. Requests that do not fit get no answer.
	maxPending = 10_000
	// flushTimeout bounds the wait for the server at the start and at the end.
	flushTimeout = 2 * time.Second
)

// endpoint returns the answer to a request's body, to be encoded as JSON. It calls hold with the parameters,
// and answers in the context that hold returns.
type endpoint func(ctx context.Context, body []byte, hold holdFunc) (any, error)

type holdFunc func(params any) (context.Context, error)

func plainSubject(ns string) bool {
	return !strings.HasPrefix(ns, ".") && !strings.HasSuffix(ns, ".") && !strings.Contains(ns, "..")
}

// natsAPI answers requests over NATS: at <namespace>.<endpoint>, as HTTP would.
type natsAPI struct {
	namespace string
	endpoints map[string]endpoint
	status    *status.Status
	fresh     *fresh.Watcher
	metrics   *web.Metrics
	up        func(bool) // sets tallyroll_nats_up
	log       zerolog.Logger
}

// serve answers requests until ctx ends. All query processes of a namespace
// share them (a queue group). It works without NATS, unless the settings chose a NATS that refuses it.
func (n *natsAPI) serve(ctx context.Context, settings natsconn.Settings) error {
	closed := make(chan struct{})
	if settings.Chosen() { // at the default address there may be none
		n.up(false)
	}
	conn, err := settings.ConnectLater(ctx, "tallyroll query", n.log,
		"until it answers, nothing is answered over NATS, and /v1/streams, /v1/rejects and /v1/watch answer 503; if "+
			"there is no NATS, set NATS_URL to nothing",
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }), natsconn.ReportUp(n.up))
	switch {
	case ctx.Err() != nil && err != nil:
		return nil
	case err != nil && !settings.Chosen():
		n.log.Warn().Err(err).Msg("doing without NATS: set NATS_URL to where it is, or to nothing if you have no NATS")
		return nil
	case err != nil:
		return err
	}
	js, err := settings.JetStream(conn)
	if err != nil {
		conn.Close()
		return err
	}
	n.status.Connected(js)
	followed := make(chan struct{})
	following, stopFollowing := context.WithCancel(ctx)
	go func() { defer close(followed); n.status.FollowWatch(following, js) }()
	defer func() { stopFollowing(); <-followed }()
	r := &responder{natsAPI: n, conn: conn, slots: make(chan struct{}, maxConcurrent), ended: make(chan struct{})}
	offered, err := r.offer(ctx)
	if err != nil {
		conn.Close()
		return fmt.Errorf("offer the service %s on NATS: %w", serviceName, err)
	}
	_ = conn.FlushTimeout(flushTimeout) // so that the server has the endpoints; a reconnect sends them again
	n.log.Info().Str("server", natsconn.ServerOf(conn)).Str("subjects", n.namespace+".*").Msg("answering on NATS")
	<-ctx.Done()
	_ = offered.Stop() // its errors are about the connection, which ends next
	r.wait()
	if err := conn.Drain(); err != nil {
		conn.Close()
	}
	select {
	case <-closed:
	case <-time.After(flushTimeout):
		conn.Close()
	}
	return nil
}

// offer adds the endpoints as a NATS service (micro). Its statistics only count requests: the library takes
// errors and times when a handler returns, but ours starts a goroutine per request. The metrics have both.
func (r *responder) offer(ctx context.Context) (micro.Service, error) {
	offered, err := micro.AddService(r.conn, micro.Config{
		Name: serviceName, Version: semanticVersion(release.Version()), Description: "Rolling totals of counters",
		Metadata: map[string]string{"namespace": r.namespace}, QueueGroup: serviceName,
	})
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(r.endpoints)) {
		handle := func(req micro.Request) { r.dispatch(ctx, name, r.endpoints[name], req) }
		err := offered.AddEndpoint(name, micro.HandlerFunc(handle),
			micro.WithEndpointSubject(r.namespace+"."+name), micro.WithEndpointPendingLimits(maxPending,
				maxPending*1024))
		if err != nil {
			return nil, errors.Join(err, offered.Stop())
		}
	}
	return offered, nil
}

func endpointsOf(q *questions) map[string]endpoint {
	return map[string]endpoint{
		"total": overNATS(func(ctx context.Context, _ string, b *answer.TotalBody) (any, error) {
			out, _, err := q.Totals(ctx, b.Input())
			return &out, err
		}),
		"uniques": overNATS(func(ctx context.Context, _ string, b *answer.UniquesBody) (any, error) {
			out, _, err := q.Uniques(ctx, b.Input())
			return &out, err
		}),
		"series": overNATS(func(ctx context.Context, _ string, b *answer.SeriesBody) (any, error) {
			found, err := q.Series(ctx, b.Input())
			if err != nil {
				return nil, err
			}
			return found.JSON(), nil
		}),
		"top":      overNATS(q.Top),
		"counters": overNATS(q.Counters),
		"about": func(ctx context.Context, body []byte, hold holdFunc) (any, error) {
			if len(body) == 0 { // it takes nothing, so nothing is as good as an empty object
				body = []byte("{}")
			}
			return overNATS(func(ctx context.Context, _ string, _ *api.NoParams) (answer.AboutAnswer, error) {
				return q.getAbout(ctx)
			})(ctx, body, hold)
		},
		"take":    overNATS(bodyOf(q.limits.Take)), // a refusal is an answer
		"return":  overNATS(bodyOf(q.limits.Return)),
		"limit":   overNATS(bodyOf(q.limits.Look)),
		"renew":   overNATS(q.limits.Renew),
		"release": overNATS(q.limits.Release),
		"settle":  overNATS(q.limits.Settle),
	}
}

// overNATS returns the endpoint that reads JSON from a body.
func overNATS[P, A any](find func(ctx context.Context, part string, p *P) (A, error)) endpoint {
	return func(_ context.Context, body []byte, hold holdFunc) (any, error) {
		p := new(P)
		if bad := api.CheckBody(body); bad != nil {
			return nil, bad
		}
		if err := api.DecodeBody(body, p); err != nil {
			return nil, web.NewProblem(http.StatusBadRequest, err.Error())
		}
		ctx, err := hold(p) // that of the request, as long as it has a slot
		if err != nil {
			return nil, err
		}
		return find(ctx, web.InBody, p)
	}
}

func bodyOf[P any](find func(ctx context.Context, part string, p *P) (*limitapi.TakeOutput,
	error)) func(context.Context, string, *P) (limitapi.TakeAnswer, error) {
	return func(ctx context.Context, part string, p *P) (limitapi.TakeAnswer, error) {
		out, err := find(ctx, part, p)
		if err != nil {
			return limitapi.TakeAnswer{}, err
		}
		return out.Body, nil
	}
}

var semantic = regexp.MustCompile(`^v?(\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?)$`)

// semanticVersion is a version as micro requires it; a revision follows 0.0.0.
func semanticVersion(version string) string {
	if m := semantic.FindStringSubmatch(version); m != nil {
		return m[1]
	}
	return "0.0.0-r" + regexp.MustCompile(`[^0-9A-Za-z-]`).ReplaceAllString(version, "-")
}

// responder answers requests over NATS, each in a goroutine, because NATS calls a handler for one message at
// a time.
type responder struct {
	*natsAPI
	conn  *nats.Conn
	slots chan struct{}  // has a token for each request that is being answered, but not for one that waits
	ended chan struct{}  // closed when no request can begin any more: then those that have waited need no slot
	under sync.WaitGroup // of the requests under way. It grows only while the new one has a slot
}

// dispatch waits for a slot and answers the request in a goroutine, even if the service stops meanwhile.
func (r *responder) dispatch(ctx context.Context, name string, find endpoint, req micro.Request) {
	start := time.Now()
	traced := trace.With(context.WithoutCancel(ctx), nats.Header(req.Headers()))
	select {
	case <-ctx.Done():
		r.record(traced, name, r.refuse(req, web.NewProblem(http.StatusServiceUnavailable, "the service is stopping")),
			time.Since(start))
		return
	case r.slots <- struct{}{}:
	}
	r.under.Go(func() {
		hasSlot := true
		defer func() {
			if hasSlot {
				<-r.slots
			}
		}()
		start := time.Now()
		// Questions that wait with a slot would hold up all others. Watcher bounds their number. Without one
		// afterwards, all that wait for the same message would be answered at the same time.
		waits := func() (resume func()) {
			<-r.slots
			hasSlot = false
			return func() {
				select {
				case r.slots <- struct{}{}:
					hasSlot = true
				case <-r.ended:
				}
			}
		}
		err := r.answer(traced, find, req, func(params any) (context.Context, error) {
			return answer.Hold(traced, r.fresh, web.InBody, params, waits)
		})
		r.record(traced, name, err, time.Since(start))
	})
}

// wait returns when all requests under way are answered, which Timeout and the end of Watcher.Run bound. No
// dispatch may follow.
func (r *responder) wait() {
	for range cap(r.slots) {
		r.slots <- struct{}{}
	}
	close(r.ended)
	r.under.Wait()
}

// answer recovers, because a panic in a goroutine would end the process with all its other requests.
func (r *responder) answer(ctx context.Context, find endpoint, req micro.Request, hold holdFunc) (err error) {
	defer func() {
		if v := recover(); v != nil {
			r.log.Error().Ctx(ctx).Str("subject", req.Subject()).Interface("panic", fmt.Sprint(v)).Str("stack",
				string(debug.Stack())).Msg("request failed")
			err = r.refuse(req, web.NewProblem(http.StatusInternalServerError, "a fault of this service, which is "+
				"in its log"))
		}
	}()
	out, err := find(ctx, req.Data(), hold)
	if err != nil {
		return r.refuse(req, web.ProblemOf(err))
	}
	data := api.Encode(out)
	if most := r.conn.MaxPayload(); int64(len(data)) > most {
		return r.refuse(req, web.NewProblem(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the answer has %d bytes and the NATS server takes messages of at most %d: ask in parts",
				len(data), most)))
	}
	return r.conn.PublishMsg(&nats.Msg{Subject: req.Reply(), Data: data})
}

// refuse sends a problem as micro's clients expect errors, and returns it.
func (r *responder) refuse(req micro.Request, p *web.Problem) error {
	m := nats.NewMsg(req.Reply())
	m.Header.Set(micro.ErrorHeader, p.Detail)
	m.Header.Set(micro.ErrorCodeHeader, strconv.Itoa(p.Status))
	m.Data = api.Encode(p)
	_ = r.conn.PublishMsg(m) // a request without a reply subject gets no answer
	return p
}

// record logs and measures a request. A refused take is no error.
func (r *responder) record(ctx context.Context, name string, err error, took time.Duration) {
	code := http.StatusOK
	if err != nil {
		code = web.ProblemOf(err).Status
	}
	r.metrics.Observe("NATS "+name, code, took)
	r.log.Debug().Ctx(ctx).Str("subject", r.namespace+"."+name).Int("code", code).Dur("took", took).Msg("request")
}
