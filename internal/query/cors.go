package query

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Origins are the origins whose pages may read answers in a browser; the zero
// value allows none.
type Origins struct {
	any   bool
	exact []string
}

// UnmarshalText reads * or comma-separated origins.
func (o *Origins) UnmarshalText(text []byte) error {
	*o = Origins{}
	if string(text) == "*" {
		o.any = true
		return nil
	}
	for origin := range strings.SplitSeq(string(text), ",") {
		origin = strings.TrimSpace(origin)
		u, err := url.Parse(origin)
		if err != nil || u.Scheme == "" || u.Host == "" || origin != u.Scheme+"://"+u.Host {
			return fmt.Errorf("* or comma-separated origins such as https://stats.example.com, without a path")
		}
		o.exact = append(o.exact, strings.ToLower(origin)) // as browsers write them
	}
	return nil
}

// allow adds the headers of CORS where the request comes from an allowed
// origin, and answers a preflight, which carries no token. It reports whether
// the request is answered.
func (o Origins) allow(w http.ResponseWriter, r *http.Request) (answered bool) {
	if !o.any && len(o.exact) == 0 {
		return false
	}
	h, origin := w.Header(), r.Header.Get("Origin")
	if o.any {
		origin = "*"
	} else {
		h.Add("Vary", "Origin")
		if !slices.Contains(o.exact, origin) {
			return false
		}
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "ETag, Retry-After, RateLimit, RateLimit-Policy")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, If-None-Match, Last-Event-ID")
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}
