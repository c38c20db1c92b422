package query

import (
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzhttp"

	"tallyroll/internal/query/limitapi"
	"tallyroll/internal/query/live"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
)

// middleware decides which requests reach the handlers.
type middleware struct {
	server  *web.Server
	tokens  *access.Tokens
	origins web.Origins
	hosts   web.Hosts
	proxies *web.Networks // that are trusted
	bodies  *web.Budget
}

// wrap returns the handler of every request. It checks the host, answers CORS preflights, checks the token,
// refuses what other sites have browsers send, and compresses. It answers requests without a route.
func (m *middleware) wrap(mux *http.ServeMux) http.Handler {
	compressed := gzhttp.GzipHandler(mux)
	wrapped := m.server.Wrap(mux, func(w *web.Response, r *http.Request, pattern string, handler http.Handler) {
		authz := limitapi.IsAuthz(r.URL.Path)
		if p := m.checkHost(r); p != nil {
			p.Write(w)
			return
		}
		if answersFromRedis(r.URL.Path) {
			w.Header().Set("Cache-Control", "no-store")
			if web.UnderV1(r.URL.Path) && !authz && cors(m.origins).Apply(w, r) {
				return
			}
			token, p := m.tokens.Find(r)
			if p == nil {
				p = refuseRight(token, pattern)
			}
			if p != nil {
				p.Write(w)
				return
			}
			if token != nil {
				w.Header().Add("Vary", "Authorization")
				ctx := access.With(r.Context(), token)
				if r.URL.Path == live.Path || r.URL.Path == exportPath {
					bound, cancel := token.Bind(ctx)
					defer cancel()
					ctx = bound
				}
				r = r.WithContext(ctx)
			}
		}
		if pattern == "" {
			web.NoRoute(w, r, handler)
			return
		}
		if p := m.refuseBrowser(r); p != nil {
			p.Write(w)
			return
		}
		if authz {
			mux.ServeHTTP(w, r) // its body is not read, and its answer is too small to compress
			return
		}
		if r.Method == http.MethodPost {
			if p := api.BufferBody(w, r, m.bodies, maxBody(r)); p != nil {
				p.Write(w)
				return
			}
			defer r.Body.Close()
		}
		switch pattern {
		case "POST " + limitapi.TakePath: // the busiest, which has no path values, and answers too small to compress
			handler.ServeHTTP(w, r)
		case "GET " + live.Path: // each event is sent at once
			mux.ServeHTTP(w, r)
		default:
			compressed.ServeHTTP(w, r)
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wrapped.ServeHTTP(w, limitapi.WithoutOriginal(r))
	})
}

func cors(origins web.Origins) web.CORS {
	return web.CORS{
		Origins: origins,
		Methods: "GET, HEAD, POST, DELETE",
		Headers: "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID",
		Expose:  "ETag, RateLimit, RateLimit-Policy, Retry-After",
	}
}

// refuseBrowser refuses what no web page should have a browser send. If tokens are required, nothing is
// refused here, because browsers send none by themselves.
func (m *middleware) refuseBrowser(r *http.Request) *web.Problem {
	if m.tokens.Required() || !mayChange(r.Method, r.URL.Path) {
		return nil
	}
	authz := limitapi.IsAuthz(r.URL.Path)
	switch {
	case authz && m.fromProxy(r):
		// these fields are those of the client's request, and the page is one of the service behind the proxy
		return nil
	case m.origins.IsForeign(r), authz && hasNoOrigin(r):
		return web.NewProblem(http.StatusForbidden, foreignDetail(authz)).OfKind(web.ForeignOrigin)
	case r.Method == http.MethodPost && !authz && web.FromBrowser(r):
		return checkType(r)
	}
	return nil
}

// Any web page can make its visitors' browsers send requests to addresses that only they reach: forms, images
// and simple fetch calls, whose answers it cannot read. So changes are refused if a page of another origin
// causes them.

// mayChange reports whether a request may change counts, as a proxy's does with any method. POST /v1/total
// and /v1/uniques only ask.
func mayChange(method, path string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return limitapi.IsAuthz(path)
	}
	return path != totalPath && path != uniquesPath
}

// maxBody bounds the body of a POST: questions name many counters, and everything else is about limits.
func maxBody(r *http.Request) int64 {
	if mayChange(r.Method, r.URL.Path) {
		return limitapi.MaxBody
	}
	return api.MaxBody
}

func foreignDetail(authz bool) string {
	if authz {
		return "proxies ask here, and no browser: a question about a browser's request needs one of the headers " +
			strings.Join(proxyHeaders, ", ") + " with it, which the proxy adds"
	}
	return "a browser sends this for a page of another origin, which changes nothing here: name the page's origin in " +
		"QUERY_CORS_ORIGINS (* names none), or send it from a server"
}

// hasNoOrigin reports whether a browser's request does not say for which page it is. Browsers may omit that
// for a GET, such as an image, unless the address is on this machine or HTTPS (Fetch Metadata, section 2).
func hasNoOrigin(r *http.Request) bool {
	return web.FromBrowser(r) && r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == ""
}

// checkType refuses a body with no type, or one that a form can have: browsers older than 2020 send forms
// of other origins without Origin. curl -d uses such a type, too, but sends nothing else that browsers do.
func checkType(r *http.Request) *web.Problem {
	given := r.Header.Get("Content-Type")
	kind, _, err := mime.ParseMediaType(given)
	if err == nil && (kind == api.JSONType || strings.HasSuffix(kind, "+json")) {
		return nil
	}
	return web.NewProblem(http.StatusUnsupportedMediaType,
		fmt.Sprintf("Content-Type %s is not accepted from a browser: must be application/json", web.Excerpt(given))).
		WithHeader("Accept-Post", api.JSONType)
}

// checkHost refuses a request with an unknown host, such as a rebound page's (web.Hosts). A proxy may
// forward its client's Host. A rebound page can send what proxies send, but no Host with another port than
// ours.
func (m *middleware) checkHost(r *http.Request) *web.Problem {
	if m.tokens.Required() || !answersFromRedis(r.URL.Path) && !isPage(r.URL.Path) {
		return nil
	}
	why := m.hosts.Refuse(r, "QUERY_HOSTS")
	if why == "" || limitapi.IsAuthz(r.URL.Path) && !hasOurPort(r) && m.fromProxy(r) {
		return nil
	}
	if limitapi.IsAuthz(r.URL.Path) {
		why += "; a proxy that asks with the Host of its client is known by X-Forwarded-For, and at the same port by " +
			"QUERY_HOSTS alone"
	}
	return web.NewProblem(http.StatusForbidden, why).OfKind(web.UnknownHost)
}

// answersFromRedis reports whether a path is about counters, so that it needs a token and is never cached.
func answersFromRedis(path string) bool { return web.UnderV1(path) || path == probePath }

// proxyHeaders describe a proxy's client. Every example in deploy/examples sends the first one. No page can
// have a browser send them to another origin: that needs a preflight, to which authz does not consent.
var proxyHeaders = []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Method", "X-Forwarded-Uri",
	"X-Original-Host", "X-Original-Method", "X-Original-Uri"}

// fromProxy reports whether a proxy asks for its client. A browser in a trusted network may ask for itself.
func (m *middleware) fromProxy(r *http.Request) bool {
	return slices.ContainsFunc(proxyHeaders, func(name string) bool { return r.Header.Get(name) != "" }) ||
		!hasOurPort(r) && m.proxies.ContainPeer(r)
}

// hasOurPort reports whether a request's Host has the port that it has reached: browsers write where they
// connect to. Some proxies pass on what their client has written.
func hasOurPort(r *http.Request) bool {
	to, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return false
	}
	port := (&url.URL{Host: r.Host}).Port()
	switch {
	case port == "" && r.TLS != nil:
		port = "443"
	case port == "":
		port = "80"
	}
	return port == strconv.Itoa(to.Port)
}

// rights are what a token needs for each route. A route that is not here opens to no token.
//
// Routes with read and erase are about counters, so a token's prefixes bound them. The keys of limits are no
// counters: of GET /v1/limit, prefixes bound only the check of a counter of the streams. Routes with admin
// are about all counters and all limits: no prefix bounds them.
var rights = map[string]access.Right{
	"GET /v1/about":       access.Read,
	"GET " + totalPath:    access.Read,
	"POST " + totalPath:   access.Read,
	"GET " + uniquesPath:  access.Read,
	"POST " + uniquesPath: access.Read,
	"GET /v1/series":      access.Read,
	"GET /v1/top":         access.Read,
	"GET /v1/counters":    access.Read,
	"GET " + exportPath:   access.Read,
	"GET " + live.Path:    access.Read,
	"GET " + probePath:    access.Read,
	"GET /v1/watch":       access.Read,

	"GET " + limitapi.LimitPath:     access.Read,
	"POST " + limitapi.TakePath:     access.Take,
	"POST " + limitapi.ReturnPath:   access.Take,
	"POST " + limitapi.RenewPath:    access.Take,
	"POST " + limitapi.ReleasePath:  access.Take,
	"POST " + limitapi.SettlePath:   access.Take,
	limitapi.AuthzPath:              access.Take,
	limitapi.AuthzPath + "/{limit}": access.Take,
	"DELETE /v1/counters":           access.Erase,
	"DELETE " + limitapi.LimitPath:  access.Admin,
	"GET /v1/limits":                access.Admin,
	"GET /v1/streams":               access.Admin,
	"GET /v1/rejects":               access.Admin,
}

// refuseRight refuses a token without the route's right. Unknown routes are refused elsewhere.
func refuseRight(token *access.Token, pattern string) *web.Problem {
	right, known := rights[pattern]
	switch {
	case token == nil || pattern == "":
		return nil
	case !known:
		return web.NewProblem(http.StatusForbidden, "no token opens "+pattern).OfKind(web.TokenLacksRight)
	}
	if err := token.Require(right, pattern); err != nil {
		return web.ProblemOf(err)
	}
	return nil
}
