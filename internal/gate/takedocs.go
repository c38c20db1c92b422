package gate

import (
	"net/http"
	"strconv"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"

	"github.com/danielgtaylor/huma/v2"
)

// describeTakes adds what operations that decide and count answer besides success.
func describeTakes(a *api.API, op *huma.Operation) {
	refused := a.ProblemResponse("The hits are refused, and none is counted: ask again after retry_after.", refusedExample(), map[string]*huma.Header{
		"Retry-After":      textHeader("Whole seconds to wait.", "12"),
		"RateLimit-Policy": textHeader("The limits: q hits in w seconds.", `"login";q=5;w=60`),
		"RateLimit":        textHeader("What is left of them: r hits; t is the seconds to wait.", `"login";r=0;t=12`),
	})
	refused.Content[web.ProblemType].Schema = api.SchemaOf[Refusal](a)
	op.Responses[strconv.Itoa(http.StatusTooManyRequests)] = refused
	describeForbidden(a, op)
}

// describeForbidden adds what operations that count answer if the settings forbid it.
func describeForbidden(a *api.API, op *huma.Operation) {
	op.Responses[strconv.Itoa(http.StatusForbidden)] = a.ProblemResponse(
		"The service counts no takes: QUERY_TAKE is off. Or a browser sends this for a page of another origin, or the host is none of the service's.",
		(&limits{mode: TakeOff}).mayCount(), nil)
}

func textHeader(about, example string) *huma.Header {
	return &huma.Header{Description: about, Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{example}}}
}
