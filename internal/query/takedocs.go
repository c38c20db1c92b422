package query

import (
	"net/http"
	"strconv"

	"tallyroll/internal/web"

	"github.com/danielgtaylor/huma/v2"
)

// describeTakes adds what operations that decide and count answer besides success.
func describeTakes(registry huma.Registry, op *huma.Operation) {
	op.Responses[strconv.Itoa(http.StatusTooManyRequests)] = &huma.Response{
		Description: "The hits are refused, and none is counted: ask again after retry_after.",
		Content:     map[string]*huma.MediaType{problemType: {Schema: web.SchemaOf[refusal](registry), Example: refusedExample()}},
		Headers: map[string]*huma.Header{
			"Retry-After":      textHeader("Whole seconds to wait.", "12"),
			"RateLimit-Policy": textHeader("The limits: q hits in w seconds.", `"login";q=5;w=60`),
			"RateLimit":        textHeader("What is left of them: r hits; t is the seconds to wait.", `"login";r=0;t=12`),
		},
	}
	describeForbidden(registry, op)
}

// describeForbidden adds what operations that count answer if the settings forbid it.
func describeForbidden(registry huma.Registry, op *huma.Operation) {
	op.Responses[strconv.Itoa(http.StatusForbidden)] = &huma.Response{
		Description: "The service counts no takes: QUERY_TAKE is off. Or a browser sends this for a page of another origin, or the host is none of the service's.",
		Content:     map[string]*huma.MediaType{problemType: {Schema: web.SchemaOf[problem](registry), Example: (&limits{mode: TakeOff}).mayCount()}},
	}
}

func textHeader(about, example string) *huma.Header {
	return &huma.Header{Description: about, Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{example}}}
}
