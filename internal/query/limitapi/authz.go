package limitapi

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/plain"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
)

// AuthzPath is where a proxy asks about each request before it forwards it: nginx, Caddy and Traefik with
// parameters, Envoy at AuthzPath/<limit>/<the request's path>.
const AuthzPath = "/v1/authz"

// IsAuthz reports whether a request asks about another one, whose body, origin and path it then has.
func IsAuthz(path string) bool {
	return path == AuthzPath || strings.HasPrefix(path, AuthzPath+"/")
}

// originalPath is the path value with Envoy's original path.
const originalPath = "original"

// WithoutOriginal moves the original path of Envoy's request to a path value. Otherwise the mux would
// redirect a path such as //a/../b, and the client would get that redirect.
func WithoutOriginal(r *http.Request) *http.Request {
	name, original, found := strings.Cut(strings.TrimPrefix(r.URL.Path, AuthzPath+"/"), "/")
	if !strings.HasPrefix(r.URL.Path, AuthzPath+"/") || !found {
		return r
	}
	u := *r.URL
	u.Path, u.RawPath = AuthzPath+"/"+name, ""
	out := r.WithContext(r.Context())
	out.URL = &u
	out.SetPathValue(originalPath, "/"+original)
	return out
}

// getAuthz takes one hit for the request that a proxy asks about. It reads no body.
func (s *Service) getAuthz(w http.ResponseWriter, r *http.Request) error {
	takes, err := s.limits.authzTakes(r, s.Proxies)
	if err != nil {
		return web.InputProblem(err, web.InQuery)
	}
	answer, err := s.decide(r.Context(), takes, "")
	if err != nil {
		return web.InputProblem(err, web.InQuery)
	}
	newTakeOutput(&answer, len(takes) > 1).Write(w)
	return nil
}

// authzTakes chooses the limits by the path or by the parameters, but never by both: a path's query string is
// that of the other request, which its client writes.
func (l *limits) authzTakes(r *http.Request, proxies web.Networks) ([]limit.Take, error) {
	err := l.checkCounting()
	if err != nil {
		return nil, err
	}
	token := access.From(r.Context())
	if name := r.PathValue("limit"); name != "" {
		lim, err := l.lookup(token, name, "limit")
		if err != nil {
			return nil, err
		}
		return l.fillTakes(&forwarded{request: r, proxies: proxies, ownTarget: true}, []*limitfile.Limit{lim})
	}
	params, err := authzParams.Parse(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	limits, err := l.authzLimits(token, params)
	if err != nil {
		return nil, err
	}
	f := &forwarded{request: r, proxies: proxies}
	err = f.chooseKey(params)
	if err != nil {
		return nil, err
	}
	return l.fillTakes(f, limits)
}

// authzLimits returns the limits that the parameters name, or the one of their numbers.
func (l *limits) authzLimits(token *access.Token, params url.Values) ([]*limitfile.Limit, error) {
	names := params["limit"]
	if len(names) == 0 {
		own := &takeItem{Window: params.Get("window"), Max: api.Number(params.Get("max"))}
		lim, err := l.chooseLimit(token, own, "")
		return []*limitfile.Limit{lim}, err
	}
	if len(names) > MaxTakes {
		return nil, web.BadInput("limit", "%d limits in one request: at most %d are allowed", len(names), MaxTakes)
	}
	out := make([]*limitfile.Limit, len(names))
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, web.BadInput("limit", "%s is listed twice", web.Excerpt(name))
		}
		var err error
		out[i], err = l.chooseLimit(token, &takeItem{Subject: Subject{Limit: name}, Window: params.Get("window"),
			Max: api.Number(params.Get("max"))}, "")
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// fillTakes fills the key templates from the other request. It refuses limits with slots, because a proxy
// frees none, and a key that no limit uses, because it would have no effect.
func (l *limits) fillTakes(f *forwarded, asked []*limitfile.Limit) ([]limit.Take, error) {
	out := make([]limit.Take, len(asked))
	keyUsed := false
	for i, lim := range asked {
		if lim.Policy.Traits().Slots {
			return nil, web.BadInput("limit", "%s has the policy %s: a proxy would acquire a slot with each "+
				"request and never free it: use POST /v1/take and POST /v1/release", web.Excerpt(lim.Name),
				lim.Policy)
		}
		caller, under, err := lim.Keys(f.value)
		if err != nil {
			return nil, keyError(lim, err)
		}
		if err := access.From(f.request.Context()).CheckLimit(lim.Name, caller); err != nil {
			return nil, err
		}
		out[i] = limit.Take{Limit: &lim.Limit, Caller: caller, Key: under, N: 1}
		keyUsed = keyUsed || lim.Key.Uses(limitfile.VarKey)
	}
	if f.keyParam != "" && !keyUsed {
		return nil, web.BadInput(f.keyParam, "no limit of this request has {key} in its key template: leave it out")
	}
	return out, nil
}

// authzMethods are the usual ones of the requests that a proxy asks about. As everywhere, HEAD is described
// as GET.
var authzMethods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	http.MethodOptions}

// authzQuestion is described by hand, because its handler is plain: a proxy asks with every method.
var authzQuestion = huma.Operation{
	OperationID: "authz", Path: AuthzPath,
	Summary: "Allow or refuse a request that a proxy asks about",
	Description: "Takes one hit for a request, for nginx auth_request, Caddy forward_auth and Traefik forwardAuth. " +
		"Every method is answered, and no body is read. " +
		"The method, host and path of the request are read from X-Forwarded-Method, X-Forwarded-Host and " +
		"X-Forwarded-Uri, or else from X-Original-Method, X-Original-Host and X-Original-URI.",
	Parameters: []*huma.Param{
		{Name: "limit", In: web.InQuery, Description: "The name of a limit of QUERY_LIMITS_FILE. May repeat: the hit " +
			"is counted for all of them or none.",
			Schema: &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString},
				Examples: []any{[]string{"login"}}}},
		textParam("window", "In place of limit, with QUERY_TAKE=any: the length of the rolling window, 1s to 366d.",
			"1m"),
		{Name: "max", In: web.InQuery, Description: "With window: how many hits are allowed in it.",
			Schema: &huma.Schema{Type: huma.TypeInteger, Examples: []any{100}}},
		textParam("key_header", "The header of the request whose value is the key.", "X-Api-Key"),
		textParam("key_ip", "1: the key is the client's address, of IPv6 its /64. It needs QUERY_TRUSTED_PROXIES.",
			"1"),
	},
}

var authzParams = api.KnownParamsOf(&authzQuestion)

func textParam(name, about, example string) *huma.Param {
	return &huma.Param{Name: name, In: web.InQuery, Description: about, Schema: &huma.Schema{Type: huma.TypeString,
		Examples: []any{example}}}
}

// describeAuthz describes by hand what getAuthz answers, because a plain handler has no types to describe it.
func describeAuthz(a *api.API) {
	envoy := huma.Operation{
		OperationID: "authz-path", Path: AuthzPath + "/{limit}",
		Summary: "The same, for Envoy",
		Description: "Takes one hit for a request, for Envoy's ext_authz with the path_prefix /v1/authz/NAME: the " +
			"method, host and path behind the name are those of the request. " +
			"The query string is the request's, too, and is ignored. The limit's key template says what the key is. " +
			"Every method is answered, and no body is read.",
		Parameters: []*huma.Param{{Name: "limit", In: "path", Required: true, Description: "The name of a limit of " +
			"QUERY_LIMITS_FILE.",
			Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"per-agent"}}}},
	}
	for _, question := range []huma.Operation{authzQuestion, envoy} {
		for _, method := range authzMethods {
			op := question
			op.Method, op.OperationID = method, strings.ToLower(method)+"-"+question.OperationID
			op.Responses = api.SuccessOnly("The request is allowed and counted.", takeExample())
			op.Responses["200"].Content["application/json"].Schema = api.SchemaOf[TakeAnswer](a)
			op.Responses["200"].Headers = rateHeaders("4", "60")
			op = a.Operation(op)
			describeTakes(a, &op)
			a.OpenAPI().AddOperation(&op)
		}
	}
}

// forwarded is a request that a proxy asks about. It returns the variables of key templates.
type forwarded struct {
	request *http.Request // the proxy's
	proxies web.Networks
	// ownTarget is true if the proxy's request itself has the other one's method, host and path, not fields.
	ownTarget bool

	keyParam, key string // the parameter that chose {key}, and its value; empty if none did
}

// chooseKey sets {key} from the parameter key_header or key_ip.
func (f *forwarded) chooseKey(params url.Values) (err error) {
	switch header, byIP := params["key_header"], params["key_ip"]; {
	case header != nil && byIP != nil:
		return web.BadInput("key_ip", "not together with key_header: the key is one of them")
	case header != nil:
		f.keyParam = "key_header"
		f.key, err = f.header(header[0])
	case byIP != nil && byIP[0] != "1":
		return web.BadInput("key_ip", "%s: must be 1", web.Excerpt(byIP[0]))
	case byIP != nil:
		f.keyParam = "key_ip"
		f.key, err = f.address()
	}
	if err != nil {
		return web.BadInput(f.keyParam, "%v", err)
	}
	return nil
}

// value returns a variable of a key template. It has an error in place of an empty key, which all requests
// without one would share.
func (f *forwarded) value(variable string) (string, error) {
	switch variable {
	case limitfile.VarKey:
		if f.keyParam == "" && f.ownTarget {
			return "", errors.New("a request of this form has no key: use {ip} or {header.NAME}")
		}
		if f.keyParam == "" {
			return "", web.BadInput("key_header", "missing: name the header that has the key, or give key_ip=1")
		}
		return f.key, nil
	case limitfile.VarIP:
		return f.address()
	case limitfile.VarMethod:
		return plain.Method(f.target("Method", f.request.Method)), nil
	case limitfile.VarHost:
		return plain.Host(f.target("Host", f.request.Host)), nil
	case limitfile.VarPath:
		return f.path(), nil
	}
	name, _ := limitfile.HeaderOf(variable)
	return f.header(name)
}

// header returns a field. It refuses two, because the service behind the proxy might read the other one.
func (f *forwarded) header(name string) (string, error) {
	values := f.request.Header.Values(name)
	switch {
	case len(values) == 0 || values[0] == "":
		return "", fmt.Errorf("the request has no header %s", web.Excerpt(name))
	case len(values) > 1:
		return "", fmt.Errorf("the request has the header %s %d times: once is allowed", web.Excerpt(name), len(values))
	}
	return values[0], nil
}

func (f *forwarded) address() (string, error) {
	if !f.proxies.Any() {
		return "", errors.New("the client's address is unknown: set QUERY_TRUSTED_PROXIES to the networks of " +
			"the proxies")
	}
	address, err := f.proxies.Client(f.request)
	if err != nil {
		return "", err
	}
	return plain.Client(address), nil
}

// path is the other request's path without escapes, double slashes and dots: no spelling counts by itself.
func (f *forwarded) path() string {
	if f.ownTarget {
		return plain.Path(f.request.PathValue(originalPath))
	}
	return plain.Target(f.target("Uri", f.request.URL.EscapedPath()))
}

// target is a part of the other request's target.
func (f *forwarded) target(name, own string) string {
	if f.ownTarget {
		return own
	}
	for _, field := range []string{"X-Forwarded-" + name, "X-Original-" + name} {
		if value := f.request.Header.Get(field); value != "" {
			return value
		}
	}
	return own
}
