package query

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

const livePath = "/v1/live"

const (
	// heartbeatEvery keeps proxies, which cut silent connections off, and both
	// ends sure of the connection.
	heartbeatEvery = 15 * time.Second
	// liveWriteTimeout is how long a client may take nothing before it is let go.
	liveWriteTimeout = 10 * time.Second
	// reconnectAfter is the pause that browsers are told to make, in milliseconds.
	reconnectAfter = 2000
)

// liveParams is what GET /v1/live takes.
type liveParams struct {
	Key         string `query:"key" required:"true" doc:"The counter: 1 to 512 bytes of UTF-8 without control characters." example:"api-1"`
	Window      string `query:"window" required:"true" doc:"How far to look back from now: a whole number and a unit (s, m, h, d, w)." example:"1m"`
	LastEventID string `header:"Last-Event-ID" doc:"The id of the last event received; browsers send it when they connect again. The first event is left out where nothing has changed since." example:"1234-1229-1241-true"`
}

// Resolve reads the parameters again: see single.
func (p *liveParams) Resolve(ctx huma.Context) []error {
	var err error
	if p.Key, err = single(ctx, "key", "a counter"); err == nil {
		p.Window, err = single(ctx, "window", "a duration, such as 1m")
	}
	if err != nil {
		return []error{err}
	}
	return nil
}

func (s *service) registerLive(api huma.API) {
	example := "retry: 2000\n\nid: 1234-1229-1241-true\nevent: total\ndata: " + compact(totalExample().Totals[0]) + "\n\n"
	huma.Register(api, s.operation(api, huma.Operation{
		OperationID: "get-live", Method: http.MethodGet, Path: livePath,
		Summary: "A total at each change",
		Description: "Server-sent events. Each event total has one total as data, at the beginning and at each change, at most four a second. " +
			"A slow client is told the latest only. Where Redis cannot answer, an event problem has the problem as data; totals go on by themselves. " +
			"A comment every 15 seconds shows that the connection lives.",
		Responses: map[string]*huma.Response{"200": {
			Description: "The events, until the client goes or the service stops.",
			Content:     map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}, Example: example}},
		}},
		Metadata: tryout("/v1/live?key=api-1&window=1m"),
	}), s.live)
}

func (s *service) live(ctx context.Context, in *liveParams) (*huma.StreamResponse, error) {
	length, err := in.check()
	if err != nil {
		return nil, inputProblem(err, "query")
	}
	l, err := s.hub.join(liveQuestion{in.Key, in.Window}, length)
	if err != nil {
		return nil, err
	}
	first, err := l.first(ctx)
	if err != nil {
		s.hub.leave(l)
		return nil, err
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		defer s.hub.leave(l)
		r, w := humago.Unwrap(ctx)
		streamNews(r, w, l, first, in.LastEventID)
	}}, nil
}

func (p *liveParams) check() (time.Duration, error) {
	if err := checkKey("key", p.Key); err != nil {
		return 0, err
	}
	if p.Window == "" {
		return 0, badInput("window", "it is missing: ask about a window, such as 1m")
	}
	return parseDuration("window", p.Window)
}

// first waits for the first answer, so that a question which has none is
// refused with a status like any other.
func (l *listener) first(ctx context.Context) (*news, error) {
	select {
	case <-ctx.Done():
		return nil, newProblem(statusClientGone, "the client is gone")
	case n, ok := <-l.news:
		if !ok {
			return nil, busy("the service is stopping")
		}
		if bad := mendable(n.err); bad != nil {
			return nil, badInput("window", "%s: %v", l.topic.question.window, bad).problem("query")
		}
		return n, n.err
	}
}

// streamNews writes events until the client goes, takes nothing for
// liveWriteTimeout, or the service stops.
func streamNews(r *http.Request, w http.ResponseWriter, l *listener, first *news, lastID string) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would hold events back
	if r.Method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	// The time to read a request is over; later the server would take it for the client's end.
	_ = control.SetReadDeadline(time.Time{}) // not every writer has deadlines: those of tests do not
	send := func(text []byte) bool {
		_ = control.SetWriteDeadline(time.Now().Add(liveWriteTimeout))
		_, err := w.Write(text)
		return err == nil && control.Flush() == nil
	}
	opening := fmt.Appendf(nil, "retry: %d\n\n", reconnectAfter)
	if first.id != lastID {
		opening = append(opening, first.event()...)
	}
	if !send(opening) {
		return
	}
	heartbeat := time.NewTicker(heartbeatEvery)
	defer heartbeat.Stop()
	for {
		text := []byte(": still here\n\n")
		select {
		case <-r.Context().Done():
			return
		case <-heartbeat.C:
		case n, ok := <-l.news:
			if !ok {
				return
			}
			text = n.event()
		}
		if !send(text) {
			return
		}
	}
}

// event is the news as the protocol writes it.
func (n *news) event() []byte {
	var out bytes.Buffer
	kind, data := "total", any(n.total)
	if n.err != nil {
		kind, data = "problem", problemOf(n.err)
	} else {
		fmt.Fprintf(&out, "id: %s\n", n.id)
	}
	text, err := json.Marshal(data)
	if err != nil {
		panic(fmt.Errorf("encode an event: %w", err)) // it is made of our own types
	}
	fmt.Fprintf(&out, "event: %s\ndata: %s\n\n", kind, text)
	return out.Bytes()
}
