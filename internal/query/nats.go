package query

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tallyroll/internal/boot"
)

const (
	// serviceName is what `nats micro ls` shows.
	serviceName = "tallyroll"
	// maxConcurrent is how many requests are answered at the same time. Others wait in
	// the NATS client's buffer.
	maxConcurrent = 64
	// maxPending bounds that buffer. Requests that do not fit get no answer.
	maxPending = 10_000
)

// endpoint answers the body of a request with something to encode as JSON.
type endpoint func(ctx context.Context, body []byte) (any, error)

// endpoints are the questions that are answered over NATS, by name.
func (s *service) endpoints() map[string]endpoint {
	return map[string]endpoint{
		"total": overNATS(func(ctx context.Context, _ string, b *totalBody) (any, error) {
			out, err := s.findTotals(ctx, b.input())
			if err != nil {
				return nil, err
			}
			return &out.Body, nil
		}),
		"series": overNATS(func(ctx context.Context, _ string, b *seriesBody) (any, error) {
			found, err := s.findSeries(ctx, b.input())
			if err != nil {
				return nil, err
			}
			return seriesJSON(b.Key, found), nil
		}),
		"top":      overNATS(s.findTop),
		"counters": overNATS(s.findCounters),
		"take":     overNATS(bodyOf(s.findTake)), // a refusal is an answer
		"limit":    overNATS(bodyOf(s.findLimit)),
	}
}

// overNATS is the endpoint of an answer to JSON in a body.
func overNATS[P, A any](find func(ctx context.Context, part string, p *P) (A, error)) endpoint {
	return func(ctx context.Context, body []byte) (any, error) {
		p := new(P)
		if bad := checkBody(body); bad != nil {
			return nil, bad
		}
		if err := decodeBody(body, p); err != nil {
			return nil, newProblem(http.StatusBadRequest, err.Error())
		}
		return find(ctx, inBody, p)
	}
}

// bodyOf is a find function for the body of an answer over HTTP.
func bodyOf[P any](find func(ctx context.Context, part string, p *P) (*takeOutput, error)) func(context.Context, string, *P) (takeAnswer, error) {
	return func(ctx context.Context, part string, p *P) (takeAnswer, error) {
		out, err := find(ctx, part, p)
		if err != nil {
			return takeAnswer{}, err
		}
		return out.Body, nil
	}
}

// plainSubject reports whether a namespace can begin a subject.
func plainSubject(ns string) bool {
	return !strings.HasPrefix(ns, ".") && !strings.HasSuffix(ns, ".") && !strings.Contains(ns, "..")
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
	js, err := settings.JetStream(conn)
	if err != nil {
		conn.Close()
		return err
	}
	s.js.Store(&js)
	r := newResponder(s, conn)
	offered, err := r.offer(ctx, namespace)
	if err != nil {
		conn.Close()
		return fmt.Errorf("offer the service %s on NATS: %w", serviceName, err)
	}
	_ = conn.FlushTimeout(answerTimeout) // so that the server knows the endpoints; if the connection is lost, it comes back with them
	s.log.Info().Str("server", boot.NATSServer(conn)).Str("subjects", namespace+".*").Msg("answering on NATS")
	<-ctx.Done()
	_ = offered.Stop() // its errors are about the connection, which ends now
	r.wait()
	if err := conn.Drain(); err != nil {
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
	for name, find := range r.service.endpoints() {
		err := group.AddEndpoint(name, micro.HandlerFunc(func(req micro.Request) { r.dispatch(ctx, name, find, req) }),
			micro.WithEndpointPendingLimits(maxPending, maxPending*1024))
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
