package collect

import (
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/web"
)

// pageObject is a hit as pages send it.
type pageObject struct {
	Key string `json:"key" doc:"The counter. COLLECT_BEACON_PREFIX is put before it." example:"/cart"`
	N   int64  `json:"n,omitempty" doc:"How many, 1 to COLLECT_BEACON_MAX_N." example:"1"`
}

// described is an answer that is a problem.
type described struct {
	about   string
	example *web.Problem
}

// describePages adds what web pages call. Their tokens are none.
func (s *service) describePages(api *huma.OpenAPI) {
	registry := api.Components.Schemas
	one := web.SchemaOf[pageObject](registry)
	api.AddOperation(&huma.Operation{
		OperationID: "post-beacon", Method: http.MethodPost, Path: beaconPath,
		Summary: "Store hits of a web page",
		Description: "For navigator.sendBeacon and fetch, in pages of COLLECT_ORIGINS. COLLECT_BEACON_PREFIX is put before each key. " +
			"A ts is refused: the hits count when they are stored. All of them are stored, or none. No token is needed.",
		RequestBody: &huma.RequestBody{
			Required: true, Description: "text/plain is read alike: browsers send it without asking before.",
			Content: map[string]*huma.MediaType{"application/json": {
				Schema:  &huma.Schema{OneOf: []*huma.Schema{one, {Type: huma.TypeArray, Items: one}}},
				Example: []pageObject{{Key: "/cart", N: 1}, {Key: "/cart/add", N: 2}},
			}},
		},
		Responses: pageProblems(registry, map[string]*huma.Response{"204": {Description: "JetStream has stored the hits."}}, map[int]described{
			http.StatusRequestTimeout:        {"The body did not arrive in time. Nothing is stored.", web.NewProblem(http.StatusRequestTimeout, "body: it did not arrive within 10s")},
			http.StatusRequestEntityTooLarge: {"More bytes or hits than allowed. Nothing is stored.", web.NewProblem(http.StatusRequestEntityTooLarge, "body: it has more than 65536 bytes, which is what browsers allow a beacon: send several")},
			http.StatusUnsupportedMediaType:  {"A content type that is not taken. Nothing is stored.", web.NewProblem(http.StatusUnsupportedMediaType, "Content-Type \"text/css\" is not taken: allowed are text/plain, application/json and none")},
		}),
	})
	param := func(name, about string, required bool, schema *huma.Schema) *huma.Param {
		return &huma.Param{Name: name, In: "query", Description: about, Required: required, Schema: schema}
	}
	api.AddOperation(&huma.Operation{
		OperationID: "get-hit-gif", Method: http.MethodGet, Path: gifPath,
		Summary:     "Store a hit by loading an image",
		Description: "For pages of COLLECT_ORIGINS that can only load an image. There is an image only if the hit is stored. No token is needed.",
		Parameters: []*huma.Param{
			param("key", "The counter. COLLECT_BEACON_PREFIX is put before it.", true, &huma.Schema{Type: huma.TypeString, Examples: []any{"/cart"}}),
			param("n", "How many, 1 to COLLECT_BEACON_MAX_N; 1 by default.", false, &huma.Schema{Type: huma.TypeInteger, Examples: []any{1}}),
			param("r", "Ignored. It makes an address that the browser has not loaded yet.", false, &huma.Schema{Type: huma.TypeString, Examples: []any{"0.7"}}),
		},
		Responses: pageProblems(registry, map[string]*huma.Response{"200": {
			Description: "JetStream has stored the hit. A transparent image of one pixel.",
			Content:     map[string]*huma.MediaType{"image/gif": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
		}}, nil),
	})
}

// pageProblems adds the problems that both have, and further ones, to what an operation answers.
func pageProblems(registry huma.Registry, responses map[string]*huma.Response, more map[int]described) map[string]*huma.Response {
	all := map[int]described{
		http.StatusBadRequest: {"A hit is wrong. Nothing is stored.", web.NewProblem(http.StatusBadRequest, "key: the counter's name has 0 bytes; 1 to 512 are allowed")},
		http.StatusForbidden: {"The page's origin is not one of COLLECT_ORIGINS, or the request names none. Nothing is stored.",
			web.NewProblem(http.StatusForbidden, `pages of the origin "https://other.example.com" may not count here: allowed are those of COLLECT_ORIGINS`)},
		http.StatusNotFound:           {"It is off.", web.NewProblem(http.StatusNotFound, pagesOff(beaconPath))},
		http.StatusServiceUnavailable: {"Nothing of this request is stored.", noRoom("COLLECT_MAX_WAITING")},
		http.StatusGatewayTimeout:     {"Whether the hits are stored is unknown.", web.NewProblem(http.StatusGatewayTimeout, "JetStream has not answered in time (COLLECT_TIMEOUT): whether the hits of this request are stored is unknown")},
	}
	for status, d := range more {
		all[status] = d
	}
	schema := web.SchemaOf[web.Problem](registry)
	for status, d := range all {
		responses[strconv.Itoa(status)] = &huma.Response{Description: d.about, Content: map[string]*huma.MediaType{web.ProblemType: {Schema: schema, Example: d.example}}}
	}
	return responses
}
