package web

import (
	"net/http"
)

// CORS is what a service tells browsers about calls from other origins' pages.
type CORS struct {
	Origins Origins
	Methods string // that pages may use, comma-separated
	Headers string // that pages may send
	Expose  string // headers of answers that pages may read
	// Credentials lets browsers send requests that may carry cookies, as sendBeacon's do. It needs named origins.
	Credentials bool
}

// Apply adds the headers of CORS if the request comes from an allowed
// origin. It answers a preflight, which carries no token. It reports whether
// it has answered the request.
func (c CORS) Apply(w http.ResponseWriter, r *http.Request) (answered bool) {
	if c.Origins.None() {
		return false
	}
	h, origin := w.Header(), r.Header.Get("Origin")
	if c.Origins.Any() {
		origin = "*"
	} else {
		h.Add("Vary", "Origin")
		if !c.Origins.Allow(origin) {
			return false
		}
		if c.Credentials {
			h.Set("Access-Control-Allow-Credentials", "true")
		}
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", c.Expose)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", c.Methods)
	h.Set("Access-Control-Allow-Headers", c.Headers)
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}
