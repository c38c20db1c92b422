package collect

import (
	"fmt"
	"net/http"

	"tallyroll/internal/access"
	"tallyroll/internal/web"
)

const hitsPath, beaconPath, gifPath = "/v1/hits", "/v1/beacon", "/v1/hit.gif"

// callers decides who may send hits.
type callers struct {
	tokens *access.Tokens
	hosts  web.Hosts
}

// check returns the request's token, nil if none is needed, or why the request is refused. Without the first
// check, any web page could count on a service in its visitor's network; without the second, a page could do
// so by pointing its own name at our address.
func (c *callers) check(r *http.Request) (*access.Token, *web.Problem) {
	if r.Method != http.MethodOptions && (web.Origins{}).IsForeign(r) {
		return nil, web.NewProblem(http.StatusForbidden, fmt.Sprintf("%s is not for pages of other origins: they use %s or %s", r.URL.Path, beaconPath, gifPath))
	}
	if !c.tokens.Required() {
		if why := c.hosts.Refuse(r, "COLLECT_HOSTS"); why != "" {
			return nil, web.NewProblem(http.StatusForbidden, why).OfKind(web.UnknownHost)
		}
		return nil, nil
	}
	token, p := c.tokens.Find(r)
	if p != nil {
		return nil, p
	}
	if err := token.Require(access.Count, "POST "+hitsPath); err != nil {
		return nil, web.ProblemOf(err)
	}
	return token, nil
}
