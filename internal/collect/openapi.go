package collect

import (
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"tallyroll/internal/web"
)

// object is a hit as the document describes it. internal/hit reads it.
type object struct {
	Key string `json:"key" doc:"The counter: 1 to 512 bytes of UTF-8 without control characters." example:"/cart" minLength:"1" maxLength:"512"`
	N   int64  `json:"n,omitempty" doc:"How many happened. 1 if it is missing." example:"3" minimum:"1" maximum:"1099511627776"`
	TS  any    `json:"ts,omitempty" doc:"When: Unix milliseconds as an integer, or an RFC 3339 string. When JetStream stores it if it is missing." example:"1763683200000"`
}

// cloudEvent is a CloudEvent in JSON. internal/rules reads it.
type cloudEvent struct {
	SpecVersion string `json:"specversion" doc:"1.0" example:"1.0"`
	Type        string `json:"type" doc:"What happened." example:"order.paid" minLength:"1"`
	Source      string `json:"source" doc:"Where. With id, it tells the event from all others." example:"/shop" minLength:"1"`
	ID          string `json:"id" doc:"New for each event of a source." example:"812" minLength:"1"`
	Time        string `json:"time,omitempty" doc:"When: RFC 3339." example:"2026-11-21T10:00:00Z"`
	Data        any    `json:"data,omitempty" doc:"What rules look into."`
}

// describe makes the OpenAPI document. The handlers do not pass through huma: reading a hit takes a
// microsecond without it.
func (s *service) describe() *huma.OpenAPI {
	api := humago.New(http.NewServeMux(), web.APIConfig("Tallyroll collect",
		"Takes hits over HTTP and stores them in NATS JetStream, where ingest counts them. "+
			"202 means stored. Errors are RFC 9457 problems whose detail says what was wrong and what is allowed.")).OpenAPI()
	if s.needsToken() {
		api.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
			bearerScheme: {Type: "http", Scheme: "bearer", Description: "One of the tokens of COLLECT_TOKENS_FILE."},
		}
	}
	api.AddOperation(s.describeHits(api.Components.Schemas))
	api.AddOperation(s.describeHandshake())
	s.describePages(api)
	describeStatus(api, s.settings.MetricsAddr == "")
	return api
}

const bearerScheme = "bearer"

func (s *service) describeHits(registry huma.Registry) *huma.Operation {
	one := web.SchemaOf[object](registry)
	one.Title = "hit"
	event := web.SchemaOf[cloudEvent](registry)
	event.Title = "CloudEvent"
	paid := cloudEvent{SpecVersion: "1.0", Type: "order.paid", Source: "/shop", ID: "812", Time: "2026-11-21T10:00:00Z", Data: map[string]any{"cents": 1999}}
	op := &huma.Operation{
		OperationID: "post-hits", Method: http.MethodPost, Path: hitsPath,
		Summary: "Store hits",
		Description: "Stores one hit, an array of hits, or one hit per line (NDJSON), packed with gzip or zstd if Content-Encoding says so. " +
			"Or stores CloudEvents: one or a batch as JSON, or one whose attributes are headers (ce-type, ce-source, ce-id, ce-specversion) and whose data is the body, of any type; rules of ingest say what they count. " +
			"All of a request is stored, or nothing. With an Idempotency-Key, a request can be sent again until it is answered, and its hits count once. A CloudEvent alone can be sent again without one.",
		Parameters: []*huma.Param{{
			Name: keyHeader, In: "header", Description: "1 to 255 visible ASCII characters, in double quotes or without, new for each request. The stream knows it for 2 minutes by default.",
			Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"5f0c1b9e-1d7a-4a43-9d2e-0c3c0f4f0c55"}},
		}},
		RequestBody: &huma.RequestBody{
			Required: true, Description: "The first byte that is not white space decides the form, whatever the content type says.",
			Content: map[string]*huma.MediaType{
				"application/json": {
					Schema:  &huma.Schema{OneOf: []*huma.Schema{one, {Type: huma.TypeArray, Items: one}}},
					Example: []object{{Key: "/cart", N: 3}, {Key: "shop.checkout", N: 1, TS: "2026-11-21T10:00:00Z"}},
				},
				structuredType: {Schema: event, Example: paid},
				batchType:      {Schema: &huma.Schema{Type: huma.TypeArray, Items: event}, Example: []cloudEvent{paid}},
				"application/x-ndjson": {
					Schema:  &huma.Schema{Type: huma.TypeString, Description: "A hit per line."},
					Example: "{\"key\":\"/cart\"}\n{\"key\":\"shop.checkout\",\"n\":2}\n",
				},
			},
		},
		Responses: map[string]*huma.Response{"202": {
			Description: "JetStream has stored the hits.",
			Content: map[string]*huma.MediaType{"application/json": {
				Schema: web.SchemaOf[receipt](registry), Example: receipt{Stored: 2, Stream: "HITS", Sequence: 812},
			}},
		}},
	}
	op.Metadata = web.Tryout(hitsPath)
	problems := []struct {
		status  int
		about   string
		example *web.Problem
	}{
		{http.StatusBadRequest, "The body or the key is wrong. errors names each bad item. Nothing is stored.",
			itemsProblem(http.StatusBadRequest, []web.ProblemDetail{{Location: "body[3]", Message: "n must be an integer from 1 to 1099511627776"}}, 1)},
		{http.StatusRequestTimeout, "The body did not arrive in time. Nothing is stored.", web.NewProblem(http.StatusRequestTimeout, "body: it did not arrive within 10s")},
		{http.StatusUnprocessableEntity, "The Idempotency-Key, or the source and id of a CloudEvent, was used for something else. Nothing is stored.",
			keyReused(keyHeader, outcome{stream: "HITS", sequence: 812})},
		{http.StatusRequestEntityTooLarge, "More bytes or hits than allowed. Nothing is stored.", s.tooLarge()},
		{http.StatusUnsupportedMediaType, "A content type or encoding that is not taken. Nothing is stored.",
			web.NewProblem(http.StatusUnsupportedMediaType, "Content-Encoding \"br\" is not taken: allowed are gzip, zstd and none")},
		{http.StatusServiceUnavailable, "Nothing of this request is stored: send it again after the seconds in Retry-After.", noRoom("COLLECT_MAX_WAITING")},
		{http.StatusGatewayTimeout, "Whether the hits are stored is unknown. Sending them again is safe only with the same Idempotency-Key.",
			web.NewProblem(http.StatusGatewayTimeout, "JetStream has not answered in time (COLLECT_TIMEOUT): whether the hits of this request are stored is unknown").Of(web.StoredUnknown)},
	}
	if s.needsToken() {
		op.Security = []map[string][]string{{bearerScheme: {}}}
		problems = append(problems,
			struct {
				status  int
				about   string
				example *web.Problem
			}{http.StatusUnauthorized, "The token is missing or wrong.", web.NewProblem(http.StatusUnauthorized, "this call needs the header Authorization: Bearer with one of the tokens of COLLECT_TOKENS_FILE")},
			struct {
				status  int
				about   string
				example *web.Problem
			}{http.StatusForbidden, "A key is outside of the token's prefix. Nothing is stored.",
				itemsProblem(http.StatusForbidden, []web.ProblemDetail{{Location: "body[0]", Message: `key "/cart" does not begin with "shop.", as all keys of this token must`}}, 1).Of(web.KeyOutsidePrefix)})
	}
	schema := web.SchemaOf[web.Problem](registry)
	for _, p := range problems {
		r := &huma.Response{Description: p.about, Content: map[string]*huma.MediaType{web.ProblemType: {Schema: schema, Example: p.example}}}
		if p.status == http.StatusServiceUnavailable {
			r.Headers = map[string]*huma.Header{"Retry-After": {Description: "Seconds to wait.", Schema: &huma.Schema{Type: huma.TypeInteger, Examples: []any{1}}}}
		}
		op.Responses[strconv.Itoa(p.status)] = r
	}
	return op
}

// describeStatus adds what is answered in plain text and needs no token.
func describeStatus(api *huma.OpenAPI, withMetrics bool) {
	text := func(about, example string) *huma.Response {
		return &huma.Response{Description: about, Content: map[string]*huma.MediaType{
			"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}, Example: example},
		}}
	}
	add := func(id, path, summary, about string, responses map[string]*huma.Response) {
		api.AddOperation(&huma.Operation{
			OperationID: id, Method: http.MethodGet, Path: path, Summary: summary, Description: about, Responses: responses, Metadata: web.Tryout(path),
		})
	}
	add("get-health", "/healthz", "Whether the process is alive", "It answers as long as the process runs, whatever the state of NATS.",
		map[string]*huma.Response{"200": text("It is alive.", "ok\n")})
	add("get-ready", "/readyz", "Whether hits can be stored", "NATS answers and a stream takes the subject; otherwise, and once the process has been asked to stop, a line says why not.",
		map[string]*huma.Response{"200": text("They can.", "ready\n"), "503": text("They cannot.", "NATS does not answer\n")})
	if withMetrics {
		add("get-metrics", "/metrics", "Metrics", "Metrics of the service for Prometheus.",
			map[string]*huma.Response{"200": text("The metrics in Prometheus' text format.", "tallyroll_collect_hits_total 812\n")})
	}
}
