package gate

import (
	"net/http"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"

	"github.com/danielgtaylor/huma/v2"
)

// authzQuestion is the operation at AuthzPath. It is described by hand, because the handler
// is a plain one: a proxy asks before every request, and all methods are answered.
var authzQuestion = huma.Operation{
	OperationID: "get-authz", Method: http.MethodGet, Path: AuthzPath,
	Summary: "Allow or refuse a request that a proxy asks about",
	Description: "Takes one hit for a request, for nginx auth_request, Caddy forward_auth and Traefik forwardAuth. Every method is answered, and no body is read. " +
		"The method, host and path of the request are read from X-Forwarded-Method, X-Forwarded-Host and X-Forwarded-Uri, or else from X-Original-Method, X-Original-Host and X-Original-URI.",
	Parameters: []*huma.Param{
		{Name: "limit", In: web.InQuery, Description: "The name of a limit of QUERY_LIMITS_FILE. May repeat: the hit is counted for all of them or none.",
			Schema: &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}, Examples: []any{[]string{"login"}}}},
		textParam("window", "In place of limit, with QUERY_TAKE=any: how far the limit looks back, 1s to 366d.", "1m"),
		{Name: "max", In: web.InQuery, Description: "Beside window: how many hits are allowed in it.", Schema: &huma.Schema{Type: huma.TypeInteger, Examples: []any{100}}},
		textParam("key_header", "The header of the request whose value is the key.", "X-Api-Key"),
		textParam("key_ip", "1: the key is the client's address, of IPv6 its /64. It needs QUERY_TRUSTED_PROXIES.", "1"),
	},
}

var authzParams = api.KnownParamsOf(&authzQuestion)

func textParam(name, about, example string) *huma.Param {
	return &huma.Param{Name: name, In: web.InQuery, Description: about, Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{example}}}
}

// describeAuthz adds the questions of proxies to the document.
func (g *Gate) describeAuthz(a *api.API) {
	ask := authzQuestion
	ask.Metadata = api.Tryout(AuthzPath + "?limit=login&key_header=User-Agent")
	envoy := huma.Operation{
		OperationID: "get-authz-path", Method: http.MethodGet, Path: AuthzPath + "/{limit}",
		Summary: "The same, for Envoy",
		Description: "Takes one hit for a request, for Envoy's ext_authz with the path_prefix /v1/authz/NAME: the method, host and path behind the name are those of the request. " +
			"The query string is the request's, too, and is ignored. The limit's key template says what the key is. Every method is answered, and no body is read.",
		Parameters: []*huma.Param{{Name: "limit", In: "path", Required: true, Description: "The name of a limit of QUERY_LIMITS_FILE.",
			Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"per-agent"}}}},
		Metadata: api.Tryout(AuthzPath + "/per-agent/cart?a=1"),
	}
	for _, op := range []*huma.Operation{&ask, &envoy} {
		op.Responses = api.SuccessOnly("The request is allowed and counted.", takeExample())
		op.Responses["200"].Content["application/json"].Schema = api.SchemaOf[TakeAnswer](a)
		*op = a.Operation(*op)
		describeTakes(a, op)
		a.OpenAPI().AddOperation(op)
	}
}
