package collect

import (
	"fmt"
	"net/http"
	"regexp"

	"tallyroll/internal/web"
)

// Senders of CloudEvents ask in this way whether they may deliver here (HTTP 1.1 Web Hooks for Event Delivery, section
// 4), so that nobody can have them flood a service that expects no events.
const (
	requestOrigin = "WebHook-Request-Origin"
	allowedOrigin = "WebHook-Allowed-Origin"
	allowedRate   = "WebHook-Allowed-Rate"
)

// senderName is a name that can be a DNS expression: nothing else is repeated in an answer.
var senderName = regexp.MustCompile(`^[A-Za-z0-9*_.:-]{1,253}$`)

// serveHandshake is OPTIONS /v1/hits. It consents if the sender could deliver with the same token: if tokens are
// needed, with one, and with one that has no prefix, because an event names no key. COLLECT_ORIGINS is about pages, and
// says nothing about senders. A browser's question about CORS gets none of its headers, so that its page may not post here.
// WebHook-Request-Callback is not called: the answer says it all, and an address from a stranger is not asked.
func (s *service) serveHandshake(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", "OPTIONS, POST")
	names := r.Header.Values(requestOrigin)
	if len(names) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if len(names) > 1 || !senderName.MatchString(names[0]) {
		web.NewProblem(http.StatusBadRequest, fmt.Sprintf("%s: allowed is one name of a sender, such as events.example.com", requestOrigin)).Write(w)
		return
	}
	from, p := s.caller(r)
	if p == nil {
		p = mayDeliver(from)
	}
	if p != nil {
		p.Write(w)
		return
	}
	w.Header().Set(allowedOrigin, names[0])
	w.Header().Set(allowedRate, "*") // what is too much at a time is answered 503 with Retry-After
	w.WriteHeader(http.StatusNoContent)
}

// mayDeliver refuses events of a caller who may count some keys only.
func mayDeliver(from caller) *web.Problem {
	if from.prefix == "" {
		return nil
	}
	return web.NewProblem(http.StatusForbidden,
		fmt.Sprintf("the keys of this token must begin with %q, and a CloudEvent names no key: events need a token without a prefix", from.prefix)).Of(web.KeyOutsidePrefix)
}
