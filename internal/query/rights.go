package query

import (
	"net/http"

	"tallyroll/internal/access"
	"tallyroll/internal/gate"
	"tallyroll/internal/live"
	"tallyroll/internal/web"
)

// rights are what a token needs for each route. A route that is not here opens to no token.
//
// Routes with read and erase are about counters, so a token's prefixes bound them, as they do the check of a
// counter of the streams at GET /v1/limit. The keys of limits are no counters. Routes with admin are about
// all counters and all limits: no prefix bounds them.
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

	"POST /v1/take":             access.Take,
	"POST " + gate.RenewPath:    access.Take,
	"POST " + gate.ReleasePath:  access.Take,
	"GET " + gate.LimitPath:     access.Take,
	gate.AuthzPath:              access.Take,
	gate.AuthzPath + "/{limit}": access.Take,
	"DELETE /v1/counters":       access.Erase,
	"DELETE " + gate.LimitPath:  access.Admin,
	"GET /v1/limits":            access.Admin,
	"GET /v1/streams":           access.Admin,
	"GET /v1/rejects":           access.Admin,
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
