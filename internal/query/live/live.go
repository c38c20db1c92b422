package live

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
)

const Path = "/v1/live"

const (
	// heartbeatEvery is the interval of heartbeats, which show both ends that the connection is alive, and
	// keep proxies from closing it.
	heartbeatEvery = 15 * time.Second
	// reconnectAfter is the pause, in milliseconds, before browsers reconnect.
	reconnectAfter = 2000
)

type params struct {
	Keys        []string `query:"key,explode" required:"true" doc:"A counter: 1 to 512 bytes of UTF-8 without control characters. May repeat; a comma is part of the name." example:"[\"api-1\"]"`
	Windows     []string `query:"window,explode" required:"true" doc:"How far to look back from now: a whole number and a unit (s, m, h, d, w, y). May repeat, at most 8 times." example:"[\"1m\"]"`
	AsOf        string   `query:"as_of" hint:"true or false" doc:"true: once per second an event as_of says how far the totals reach. Default: false." example:"true"`
	LastEventID string   `header:"Last-Event-ID" doc:"The id of the last event received; browsers send it when they connect again. With one counter and one window, the first event is left out if nothing has changed since." example:"1234-1229-1241-true"`
}

const asOfHint = "true or false"

// Live answers GET /v1/live.
type Live struct {
	hub     *hub
	MaxKeys int
}

type Settings struct {
	MaxClients, MaxQuestions int // of all clients together
	MaxKeys                  int // of one client
}

// New returns a Live that answers with read. The caller must run it.
func New(settings Settings, read readTotals, registry prometheus.Registerer) *Live {
	return &Live{hub: newHub(read, settings.MaxClients, settings.MaxQuestions, registry), MaxKeys: settings.MaxKeys}
}

func (l *Live) Run(ctx context.Context) error { return l.hub.serve(ctx) }

func (l *Live) Register(a *api.API) {
	example := "retry: 2000\n\nid: 1234-1229-1241-true\nevent: total\ndata: " +
		string(api.Encode(answer.TotalExample().Totals[0])) + "\n\n"
	api.HandleQuery[params, huma.StreamResponse](a, a.Operation(huma.Operation{
		OperationID: "get-live", Method: http.MethodGet, Path: Path,
		Summary: "Totals at each change",
		Description: "Server-sent events on one connection, about every counter in every window. Each event total " +
			"has one total as data, " +
			"at the beginning and at each change, at most four per second. A slow client gets only the latest of " +
			"each. With as_of=true, an event as_of has {\"as_of\":…,\"now\":…} once per second, changes or not; now " +
			"is the time by Redis's clock. If Redis cannot answer, an event problem has the problem as data; totals " +
			"resume by themselves. " +
			"A comment every 15 seconds shows that the connection is alive.",
		Responses: map[string]*huma.Response{"200": {
			Description: "The events, until the client goes or the service stops.",
			Content: map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString},
				Example: example}},
		}},
	}), l.getLive)
}

func (l *Live) getLive(w http.ResponseWriter, r *http.Request, p *params) error {
	questions, lengths, err := p.questions(l.MaxKeys)
	if err != nil {
		return web.InputProblem(err, web.InQuery)
	}
	for _, key := range p.Keys { // the hub reads for all clients, without tokens
		if err := access.From(r.Context()).CheckKey(key); err != nil {
			return err
		}
	}
	client, err := l.hub.join(questions, lengths, p.AsOf == "true")
	if err != nil {
		return err
	}
	defer l.hub.leave(client)
	first, err := client.firstResults(r.Context())
	if err != nil {
		return err
	}
	streamEvents(r, w, client, openingEvents(first, p.LastEventID))
	return nil
}

// questions checks the parameters and returns their questions and the windows' lengths.
func (p *params) questions(maxKeys int) (questions []question, lengths []time.Duration, err error) {
	in := &answer.Input{Part: web.InQuery, KeyParam: "key", WindowsParam: "window", Keys: p.Keys, Windows: p.Windows}
	if err := in.CheckKeys(maxKeys); err != nil {
		return nil, nil, err
	}
	if len(p.Windows) == 0 {
		return nil, nil, web.BadInput("window", "missing: ask about a window, such as 1m")
	}
	if p.AsOf != "" && p.AsOf != "true" && p.AsOf != "false" {
		return nil, nil, web.BadInput("as_of", "%s: must be %s", web.Excerpt(p.AsOf), asOfHint)
	}
	periods, err := in.Periods()
	if err != nil {
		return nil, nil, err
	}
	for _, key := range p.Keys {
		for _, period := range periods {
			q := question{key, period.Window}
			if slices.Contains(questions, q) {
				continue
			}
			questions, lengths = append(questions, q), append(lengths, period.Span.Length)
		}
	}
	return questions, lengths, nil
}

// openingEvents returns a client's first events: all totals, unless it asks one question and has the answer.
func openingEvents(first []*result, lastID string) []byte {
	out := fmt.Appendf(nil, "retry: %d\n\n", reconnectAfter)
	if len(first) == 1 && first[0].id == lastID {
		return out
	}
	for _, n := range first {
		out = append(out, n.text...)
	}
	return out
}

// streamEvents writes events until the client leaves, reads nothing for writeWithin, or the service stops.
func streamEvents(r *http.Request, w http.ResponseWriter, l *listener, opening []byte) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would hold events back
	if r.Method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	// The request was read. With a read deadline, the server would later assume that the client left.
	_ = control.SetReadDeadline(time.Time{}) // a writer of tests has no deadlines
	send := func(text []byte) bool {
		_ = control.SetWriteDeadline(time.Now().Add(l.hub.writeWithin))
		_, err := w.Write(text)
		if err != nil || control.Flush() != nil {
			return false
		}
		// HTTP/2 resets the stream at the deadline, even if nothing is being written.
		_ = control.SetWriteDeadline(time.Time{})
		return true
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
		case _, ok := <-l.ready:
			if !ok {
				return
			}
			text = l.events()
		}
		if !send(text) {
			return
		}
	}
}
