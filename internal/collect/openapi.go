package collect

import (
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

// object is a hit, as the document describes it. internal/hit reads it.
type object struct {
	Key string `json:"key" doc:"The counter: 1 to 512 bytes of UTF-8 without control characters." example:"/cart" minLength:"1" maxLength:"512"`
	N   int64  `json:"n,omitempty" doc:"How many happened. 1 if it is missing." example:"3" minimum:"1" maximum:"1099511627776"`
	TS  any    `json:"ts,omitempty" doc:"When: Unix milliseconds as an integer, or an RFC 3339 string. When JetStream stores it if it is missing." example:"1763683200000"`

	Unique string `json:"unique,omitempty" doc:"Whom or what the hit is of, such as a visitor, to count unique values: 1 to 512 bytes of UTF-8." example:"u-17" minLength:"1" maxLength:"512"`
	All    *bool  `json:"all,omitempty" doc:"false leaves the hit out of the sum of all hits. Default: true." example:"false"`
}

// cloudEvent is a CloudEvent in JSON. internal/rules reads it.
type cloudEvent struct {
	SpecVersion string `json:"specversion" doc:"1.0" example:"1.0"`
	Type        string `json:"type" doc:"What happened." example:"order.paid" minLength:"1"`
	Source      string `json:"source" doc:"Where. With id, it distinguishes the event from all others." example:"/shop" minLength:"1"`
	ID          string `json:"id" doc:"New for each event of a source." example:"812" minLength:"1"`
	Time        string `json:"time,omitempty" doc:"When: RFC 3339." example:"2026-11-21T10:00:00Z"`
	Data        any    `json:"data,omitempty" doc:"What rules look into."`
}

// describe makes the OpenAPI document. The handlers do without huma: reading a hit takes them a microsecond.
func describe(mux *http.ServeMux, settings Settings) *api.API {
	title := api.Title{Name: "Tallyroll collect", About: "Takes hits over HTTP and stores them in NATS JetStream, " +
		"where ingest counts them. " +
		"202 means stored. Errors are RFC 9457 problems whose detail says what was wrong and what is allowed."}
	if settings.TokensFile != "" {
		title.Tokens = "One of the tokens of COLLECT_TOKENS_FILE."
	}
	a := api.New(mux, title)
	for _, op := range []*huma.Operation{describeHits(a, settings.MaxBody), describeHandshake()} {
		a.NeedToken(op)
		a.OpenAPI().AddOperation(op)
	}
	describePages(a)
	a.DescribeStatus(
		api.StatusPage{ID: "get-health", Path: "/healthz", Summary: "Whether the process is alive",
			About:  "It answers as long as the process runs, whatever the state of NATS.",
			Answer: "It is alive.", Example: "ok\n"},
		api.StatusPage{ID: "get-ready", Path: "/readyz", Summary: "Whether hits can be stored",
			About: "NATS answers and a stream takes the subject; otherwise, and once the process has been asked to " +
				"stop, a line says why not.",
			Answer: "They can.", Example: "ready\n", Not: "They cannot.", NotExample: "NATS does not answer\n"})
	if !settings.MetricsAddr.Set() {
		a.DescribeStatus(api.MetricsPage("tallyroll_collect_hits_total 812\n"))
	}
	return a
}

type describedProblem struct {
	status  int
	about   string
	example *web.Problem
}

func describeHits(a *api.API, maxBody int64) *huma.Operation {
	one := api.SchemaOf[object](a)
	one.Title = "hit"
	event := api.SchemaOf[cloudEvent](a)
	event.Title = "CloudEvent"
	paid := cloudEvent{SpecVersion: "1.0", Type: "order.paid", Source: "/shop", ID: "812", Time: "2026-11-21T10:00:00Z",
		Data: map[string]any{"cents": 1999}}
	op := &huma.Operation{
		OperationID: "post-hits", Method: http.MethodPost, Path: hitsPath,
		Summary: "Store hits",
		Description: "Stores one hit, an array of hits, or one hit per line (NDJSON), packed with gzip or zstd if " +
			"Content-Encoding names one. " +
			"Or stores CloudEvents: one or a batch as JSON, or one whose attributes are headers (ce-type, ce-source, " +
			"ce-id, ce-specversion) and whose data is the body, of any type; rules of ingest decide what they count. " +
			"All of a request is stored, or nothing. With an Idempotency-Key, a request can be sent again until it " +
			"is answered, and its hits count once. A CloudEvent alone can be sent again without one.",
		Parameters: []*huma.Param{{
			Name: keyHeader, In: "header", Description: "1 to 255 visible ASCII characters, in double quotes or " +
				"without, new for each request. The stream remembers it for 2 minutes by default.",
			Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"5f0c1b9e-1d7a-4a43-9d2e-0c3c0f4f0c55"}},
		}},
		RequestBody: &huma.RequestBody{
			Required: true, Description: "The first byte that is not white space decides the form, whatever the " +
				"content type says.",
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
				Schema: api.SchemaOf[receipt](a), Example: receipt{Stored: 2, Stream: "HITS", Sequence: 812},
			}},
		}},
	}
	problems := []describedProblem{
		{http.StatusBadRequest, "The body or the key is wrong. errors names each bad item. Nothing is stored.",
			itemsProblem(http.StatusBadRequest, []web.ProblemDetail{{Location: "body[3]",
				Message: "n must be an integer from 1 to 1099511627776"}}, 1)},
		{http.StatusRequestTimeout, "The body did not arrive in time. Nothing is stored.",
			web.NewProblem(http.StatusRequestTimeout, "body: did not arrive within 10s")},
		{http.StatusUnprocessableEntity, "The Idempotency-Key, or the source and id of a CloudEvent, was used for " +
			"something else. Nothing is stored.",
			keyReused(keyHeader, outcome{stream: "HITS", sequence: 812})},
		{http.StatusRequestEntityTooLarge, "More bytes or hits than allowed. Nothing is stored.", tooLarge(maxBody)},
		{http.StatusUnsupportedMediaType, "A content type or encoding that is not supported. Nothing is stored.",
			web.NewProblem(http.StatusUnsupportedMediaType, "Content-Encoding \"br\" is not supported: must be gzip, "+
				"zstd or none")},
		{http.StatusServiceUnavailable, "Nothing of this request is stored: send it again after the seconds in " +
			"Retry-After.", noRoom("COLLECT_MAX_WAITING")},
		{http.StatusGatewayTimeout, "Whether the hits are stored is unknown. Sending them again is safe only with " +
			"the same Idempotency-Key.",
			web.NewProblem(http.StatusGatewayTimeout, "JetStream has not answered in time (COLLECT_TIMEOUT): whether "+
				"the hits of this request are stored is unknown").OfKind(web.StoredUnknown)},
	}
	if a.NeedsToken() {
		outside := web.ProblemDetail{Location: "body[0]", Message: `the counter "/cart" is outside of the token ` +
			`shop, which is about names that begin with "shop."`}
		problems = append(problems,
			describedProblem{http.StatusUnauthorized, "The token is missing or wrong.",
				web.NewProblem(http.StatusUnauthorized, "this call needs the header Authorization: Bearer with one of "+
					"the tokens of COLLECT_TOKENS_FILE")},
			describedProblem{http.StatusForbidden, "The token lacks the right count, or a key is outside of its " +
				"prefixes. Nothing is stored.",
				itemsProblem(http.StatusForbidden, []web.ProblemDetail{outside}, 1).OfKind(web.KeyOutsidePrefix)})
	}
	for _, p := range problems {
		var headers map[string]*huma.Header
		if p.status == http.StatusServiceUnavailable {
			headers = api.HeaderOf("Retry-After", "Seconds to wait.", 1)
		}
		op.Responses[strconv.Itoa(p.status)] = a.ProblemResponse(p.about, p.example, headers)
	}
	return op
}

func describeHandshake() *huma.Operation {
	header := func(about, example string) *huma.Header {
		return &huma.Header{Description: about, Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{example}}}
	}
	return &huma.Operation{
		OperationID: "options-hits", Method: http.MethodOptions, Path: hitsPath,
		Summary: "Ask whether CloudEvents may be delivered",
		Description: "The handshake of the CloudEvents specification for webhooks, which senders such as Azure Event " +
			"Grid begin with.",
		Parameters: []*huma.Param{{Name: requestOrigin, In: "header", Description: "Who wants to deliver.",
			Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"events.example.com"}}}},
		Responses: map[string]*huma.Response{"204": {Description: "With the header " + requestOrigin +
			": the sender may deliver.", Headers: map[string]*huma.Header{
			"Allow":       header("Methods of this path.", "OPTIONS, POST"),
			allowedOrigin: header("The sender that asked.", "events.example.com"),
			allowedRate:   header("Requests per minute; * for no bound.", "*"),
		}}},
	}
}

type pageObject struct {
	Key string `json:"key" doc:"The counter. COLLECT_BEACON_PREFIX is put before it." example:"/cart"`
	N   int64  `json:"n,omitempty" doc:"How many, 1 to COLLECT_BEACON_MAX_N." example:"1"`

	Unique string `json:"unique,omitempty" doc:"Whom or what the hit is of, such as a visitor, to count unique values: 1 to 512 bytes of UTF-8." example:"u-17" minLength:"1" maxLength:"512"`
	All    *bool  `json:"all,omitempty" doc:"false leaves the hit out of the sum of all hits. true if it is missing." example:"false"`
}

func describePages(a *api.API) {
	one := api.SchemaOf[pageObject](a)
	a.OpenAPI().AddOperation(&huma.Operation{
		OperationID: "post-beacon", Method: http.MethodPost, Path: beaconPath,
		Summary: "Store hits of a web page",
		Description: "For navigator.sendBeacon and fetch, in pages of COLLECT_ORIGINS. COLLECT_BEACON_PREFIX is put " +
			"before each key. A ts is refused: the hits count when they are stored. All of them are stored, or none. " +
			"No token is needed.",
		RequestBody: &huma.RequestBody{
			Required: true, Description: "text/plain is read in the same way: browsers send it without a preflight.",
			Content: map[string]*huma.MediaType{"application/json": {
				Schema:  &huma.Schema{OneOf: []*huma.Schema{one, {Type: huma.TypeArray, Items: one}}},
				Example: []pageObject{{Key: "/cart", N: 1}, {Key: "/cart/add", N: 2}},
			}},
		},
		Responses: pageProblems(a, map[string]*huma.Response{"204": {Description: "JetStream has stored the hits."}},
			describedProblem{http.StatusRequestTimeout, "The body did not arrive in time. Nothing is stored.",
				web.NewProblem(http.StatusRequestTimeout, "body: did not arrive within 10s")},
			describedProblem{http.StatusRequestEntityTooLarge, "More bytes or hits than allowed. Nothing is stored.",
				web.NewProblem(http.StatusRequestEntityTooLarge, "body: more than 65536 bytes, which is what browsers "+
					"allow a beacon: send several")},
			describedProblem{http.StatusUnsupportedMediaType, "A content type that is not supported. Nothing " +
				"is stored.", web.NewProblem(http.StatusUnsupportedMediaType, "Content-Type \"text/css\" is not "+
				"supported: must be text/plain, application/json or none")},
		),
	})
	param := func(name, about string, required bool, schema *huma.Schema) *huma.Param {
		return &huma.Param{Name: name, In: "query", Description: about, Required: required, Schema: schema}
	}
	a.OpenAPI().AddOperation(&huma.Operation{
		OperationID: "get-hit-gif", Method: http.MethodGet, Path: gifPath,
		Summary: "Store a hit by loading an image",
		Description: "For pages of COLLECT_ORIGINS that can only load an image. There is an image only if the hit is " +
			"stored. No token is needed.",
		Parameters: []*huma.Param{
			param("key", "The counter. COLLECT_BEACON_PREFIX is put before it.", true,
				&huma.Schema{Type: huma.TypeString, Examples: []any{"/cart"}}),
			param("n", "How many, 1 to COLLECT_BEACON_MAX_N; 1 by default.", false,
				&huma.Schema{Type: huma.TypeInteger, Examples: []any{1}}),
			param("r", "Ignored. It makes an address that the browser has not loaded yet.", false,
				&huma.Schema{Type: huma.TypeString, Examples: []any{"0.7"}}),
		},
		Responses: pageProblems(a, map[string]*huma.Response{"200": {
			Description: "JetStream has stored the hit. A transparent image of one pixel.",
			Content: map[string]*huma.MediaType{"image/gif": {Schema: &huma.Schema{Type: huma.TypeString,
				Format: "binary"}}},
		}}),
	})
}

func pageProblems(a *api.API, responses map[string]*huma.Response, more ...describedProblem) map[string]*huma.Response {
	all := append([]describedProblem{
		{http.StatusBadRequest, "A hit is wrong. Nothing is stored.",
			web.NewProblem(http.StatusBadRequest, "key: the counter's name has 0 bytes; 1 to 512 are allowed")},
		{http.StatusForbidden, "The page's origin is not one of COLLECT_ORIGINS, or the request names none. Nothing " +
			"is stored.",
			web.NewProblem(http.StatusForbidden, `pages of the origin "https://other.example.com" may not count here: `+
				"the origin must be one of COLLECT_ORIGINS")},
		{http.StatusNotFound, "It is off.", web.NewProblem(http.StatusNotFound, pagesOffDetail(beaconPath))},
		{http.StatusServiceUnavailable, "Nothing of this request is stored.", noRoom("COLLECT_MAX_WAITING")},
		{http.StatusGatewayTimeout, "Whether the hits are stored is unknown.", web.NewProblem(http.StatusGatewayTimeout,
			"JetStream has not answered in time (COLLECT_TIMEOUT): whether the hits of this request are stored "+
				"is unknown")},
	}, more...)
	for _, d := range all {
		responses[strconv.Itoa(d.status)] = a.ProblemResponse(d.about, d.example, nil)
	}
	return responses
}
