package gate

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"

	"tallyroll/internal/limit"
)

// A proxy asks here about each request before it lets the request through: nginx, Caddy and Traefik at
// AuthzPath with parameters, Envoy below AuthzPath and a limit's name, with the request's path behind it.
const AuthzPath = "/v1/authz"

// IsAuthz reports whether a request is about another one. Its body, its origin and its path are those of the
// other one then.
func IsAuthz(path string) bool {
	return path == AuthzPath || strings.HasPrefix(path, AuthzPath+"/")
}

// originalPath is where a request of Envoy's keeps the path behind the limit's name.
const originalPath = "original"

// WithoutOriginal cuts the original path off a request of Envoy's and keeps it as a path value. The mux would
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

// getAuthz takes one hit for the request that a proxy asks about. No body is read.
func (g *Gate) getAuthz(w http.ResponseWriter, r *http.Request) error {
	takes, err := g.authzTakes(r)
	if err != nil {
		return web.InputProblem(err, web.InQuery)
	}
	answer, err := g.decide(r.Context(), takes, false)
	if err != nil {
		return web.InputProblem(err, web.InQuery)
	}
	takeOutputOf(&answer, len(takes) > 1).Write(w)
	return nil
}

// authzTakes reads which limits the request is about, and makes their keys.
func (g *Gate) authzTakes(r *http.Request) ([]limit.Take, error) {
	err := g.limits.mayCount()
	if err != nil {
		return nil, err
	}
	if name := r.PathValue("limit"); name != "" {
		lim, err := g.limits.find(name, "limit")
		if err != nil {
			return nil, err
		}
		return g.limits.takesFor(&forwarded{request: r, proxies: g.Proxies, ownTarget: true}, []*limit.Limit{lim})
	}
	params, err := authzParams.Parse(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	asked, err := g.limits.authzLimits(params)
	if err != nil {
		return nil, err
	}
	f := &forwarded{request: r, proxies: g.Proxies}
	err = f.chooseKey(params)
	if err != nil {
		return nil, err
	}
	return g.limits.takesFor(f, asked)
}

// authzLimits returns the limits that the parameters name, or the one of their numbers.
func (l *limits) authzLimits(params url.Values) ([]*limit.Limit, error) {
	names := params["limit"]
	if len(names) == 0 {
		lim, err := l.limitOf(&takeItem{Window: params.Get("window"), Max: api.Number(params.Get("max"))}, "")
		return []*limit.Limit{lim}, err
	}
	if len(names) > MaxTakes {
		return nil, web.BadInput("limit", "%d limits in one request: at most %d are allowed", len(names), MaxTakes)
	}
	out := make([]*limit.Limit, len(names))
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, web.BadInput("limit", "%s is there twice", web.Excerpt(name))
		}
		var err error
		out[i], err = l.limitOf(&takeItem{Limit: name, Window: params.Get("window"), Max: api.Number(params.Get("max"))}, "")
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// takesFor makes a take of one hit for each limit.
func (l *limits) takesFor(f *forwarded, asked []*limit.Limit) ([]limit.Take, error) {
	out := make([]limit.Take, len(asked))
	keyUsed := false
	for i, lim := range asked {
		under, err := lim.Key.Fill(f.value)
		if err != nil {
			return nil, keyError(lim, err)
		}
		err = checkTakeKey("limit", under)
		if err != nil {
			return nil, err
		}
		caller, err := callerOf(lim, under, f.value)
		if err != nil {
			return nil, err
		}
		out[i] = limit.Take{Limit: lim, Key: caller, Under: under, N: 1}
		keyUsed = keyUsed || lim.Key.Uses(limit.VarKey)
	}
	if f.keyParam != "" && !keyUsed {
		return nil, web.BadInput(f.keyParam, "no limit of this request has {key} in its key template: leave it out")
	}
	return out, nil
}

// keyError is the error about a key template that cannot be filled.
func keyError(lim *limit.Limit, err error) error {
	var bad *web.InputError
	if errors.As(err, &bad) {
		return bad
	}
	return web.BadInput("limit", "the key of %s is %s, which cannot be filled: %v", web.Excerpt(lim.Name), lim.Key, err)
}
