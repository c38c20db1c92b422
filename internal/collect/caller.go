package collect

import (
	"fmt"
	"net/http"

	"tallyroll/internal/web"
)

// caller is who sends a request.
type caller struct {
	name   string // of the token; empty if none is needed
	prefix string // that every key must begin with
}

// caller says who asks, or why the request is refused. Without the first check, any page of the web could count on the
// service of its visitor's own machine or network; without the second, a page that gives its own name our address.
func (s *service) caller(r *http.Request) (caller, *web.Problem) {
	if r.Method != http.MethodOptions && (web.Origins{}).Foreign(r) {
		return caller{}, web.NewProblem(http.StatusForbidden, fmt.Sprintf("%s is not for pages of other origins: they use %s or %s", r.URL.Path, beaconPath, gifPath))
	}
	if !s.tokens.required() {
		why := s.settings.Hosts.Refuse(r, "COLLECT_HOSTS")
		if why != "" {
			return caller{}, web.NewProblem(http.StatusForbidden, why).Of(web.UnknownHost)
		}
		return caller{}, nil
	}
	found, ok := s.tokens.find(r)
	if !ok {
		return caller{}, web.NewProblem(http.StatusUnauthorized, "this call needs the header Authorization: Bearer with one of the tokens of COLLECT_TOKENS_FILE").
			With("WWW-Authenticate", "Bearer")
	}
	return caller{name: found.name, prefix: found.prefix}, nil
}

// needsToken reports whether POST /v1/hits needs a token.
func (s *service) needsToken() bool { return s.tokens.required() }
