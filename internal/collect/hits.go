package collect

import (
	"fmt"
	"mime"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/hit"
	"tallyroll/internal/rules"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
)

// hitsHandler answers what programs send to hitsPath.
type hitsHandler struct {
	callers callers
	bodies  *bodyReader
	storage *storage
	maxHits int
}

func (h *hitsHandler) route(mux *http.ServeMux) {
	mux.HandleFunc("POST "+hitsPath, h.serveHits)
	mux.HandleFunc("OPTIONS "+hitsPath, h.serveHandshake)
}

func (h *hitsHandler) serveHits(w http.ResponseWriter, r *http.Request) {
	e, p := h.read(w, r)
	if p != nil {
		p.Write(w)
		return
	}
	stored, p := h.storage.store(r.Context(), e)
	if p != nil {
		p.Write(w)
		return
	}
	stored.write(w)
}

// write sends 202. Without encoding/json, it costs a tenth.
func (r *receipt) write(w http.ResponseWriter) {
	var buf [192]byte
	b := append(buf[:0], `{"stored":`...)
	b = strconv.AppendInt(b, int64(r.Stored), 10)
	b = append(b, `,"stream":`...)
	b = strconv.AppendQuote(b, r.Stream)
	b = append(b, `,"sequence":`...)
	b = strconv.AppendUint(b, r.Sequence, 10)
	if r.Duplicate {
		b = append(b, `,"duplicate":true`...)
	}
	b = append(b, "}\n"...)
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(b) // the client may be gone
}

var jsonType = []string{api.JSONType} // shared by all answers

// read reads a request, and checks who sends it and what it holds. CloudEvents become one unchanged message,
// for the workers' rules.
func (h *hitsHandler) read(w http.ResponseWriter, r *http.Request) (*entry, *web.Problem) {
	token, p := h.callers.check(r)
	if p != nil {
		return nil, p
	}
	id, p := messageID(r, token.Name())
	if p != nil {
		return nil, p
	}
	var header nats.Header // of events
	mode := eventMode(r)
	if mode == rules.NoCloudEvent {
		p = checkType(r)
	} else if p = mayDeliver(token); p == nil {
		header, p = eventHeader(r, mode)
	}
	if p != nil {
		return nil, p
	}
	space := workspaces.Get().(*workspace)
	defer space.free()
	held := h.storage.budget.Hold()
	defer held.Resize(0)
	body, p := h.bodies.read(w, r, space, &held)
	if p != nil {
		return nil, p
	}
	var e *entry
	if mode == rules.NoCloudEvent {
		var hits []hit.Hit
		hits, p = parse(space.parser, body, h.maxHits)
		if p == nil {
			p = refuseOutside(hits, token)
		}
		if p != nil {
			return nil, p
		}
		held.Resize(0) // the entry holds its own memory
		e = newEntry(h.storage.budget, hits, id)
	} else {
		events, single, p := checkEvents(space.events, mode, header, body, h.maxHits)
		if p != nil {
			return nil, p
		}
		idSource := keyHeader
		if id == "" && mode != rules.Batch {
			id, idSource = eventID(single, token.Name()), "source and id of the event"
		}
		held.Resize(0)
		if e = newEvents(h.storage.budget, body, events, header, id); e != nil {
			e.idSource = idSource
		}
	}
	if e == nil {
		return nil, noRoom("COLLECT_MAX_WAITING")
	}
	return e, nil
}

// parse reads a body's hits by the workers' rules, so that they count what is accepted. One bad item refuses
// all.
func parse(p *hit.Parser, body []byte, maxHits int) ([]hit.Hit, *web.Problem) {
	return parseUpTo(p, body, maxHits, "COLLECT_MAX_HITS")
}

func parseUpTo(p *hit.Parser, body []byte, maxHits int, bound string) ([]hit.Hit, *web.Problem) {
	if hit.Blank(body) {
		return nil, web.NewProblem(http.StatusBadRequest, "body: empty: must be a hit such as {\"key\":\"/cart\"}, an "+
			"array of hits, or one hit per line")
	}
	hits, rejects := p.ParseBody(body, maxHits)
	if len(rejects) == 0 && len(hits) == 0 {
		return nil, web.NewProblem(http.StatusBadRequest, "body: the array is empty and has no hit: send nothing if "+
			"nothing happened")
	}
	if len(rejects) == 0 {
		return hits, nil
	}
	if rejects[0].Reason == hit.TooLarge {
		return nil, web.NewProblem(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("body: more than %d hits, the most allowed (%s): send them in several requests", maxHits,
				bound))
	}
	var bad badItems
	for _, r := range rejects {
		bad.add(r.Item, r.Detail)
	}
	return nil, bad.problem(http.StatusBadRequest)
}

// refuseOutside refuses hits of counters that a token is not about.
func refuseOutside(hits []hit.Hit, token *access.Token) *web.Problem {
	var bad badItems
	for i, h := range hits {
		if err := token.CheckKey(string(h.Counter)); err != nil {
			bad.add(i, err.Error())
		}
	}
	if p := bad.problem(http.StatusForbidden); p != nil {
		return p.OfKind(web.KeyOutsidePrefix)
	}
	return nil
}

// checkType refuses a body whose Content-Type, if any, is not text. The first byte of the text decides how it
// is read, because curl calls everything a form, and many clients send no type.
func checkType(r *http.Request) *web.Problem {
	given := r.Header.Get("Content-Type")
	switch given {
	case "", "application/json", "application/x-ndjson": // the usual ones, without parsing
		return nil
	}
	name, params, err := mime.ParseMediaType(given)
	charset := strings.ToLower(params["charset"])
	switch {
	case err != nil:
	case charset != "" && charset != "utf-8" && charset != "us-ascii":
		return web.NewProblem(http.StatusUnsupportedMediaType,
			fmt.Sprintf("Content-Type %s is not supported: a body must be in UTF-8", web.Excerpt(given)))
	case strings.HasPrefix(name, "text/"), strings.HasSuffix(name, "+json"), isTextual[name]:
		return nil
	}
	return web.NewProblem(http.StatusUnsupportedMediaType,
		fmt.Sprintf("Content-Type %s is not supported: must be application/json (an object or an array), "+
			"application/x-ndjson (an object per line), text/plain, application/cloudevents+json, "+
			"application/cloudevents-batch+json or none", web.Excerpt(given))).
		WithHeader("Accept-Post", "application/json, application/x-ndjson, text/plain, application/cloudevents+json, "+
			"application/cloudevents-batch+json")
}

var isTextual = map[string]bool{
	"application/json": true, "application/x-ndjson": true, "application/ndjson": true, "application/jsonl": true,
	"application/x-jsonlines": true,
	"application/jsonlines":   true, "application/json-lines": true, "application/json-seq": false,
	"application/x-www-form-urlencoded": true, // what curl -d sends for any body
}

// maxKey is the longest key, in bytes.
const maxKey = 255

// messageID is the Nats-Msg-Id of a request with an Idempotency-Key, else "". A named token's name comes
// first, quoted, so that the keys of two callers never collide.
func messageID(r *http.Request, sender string) (string, *web.Problem) {
	values := r.Header[keyHeader]
	if len(values) == 0 {
		return "", nil
	}
	key, ok := "", len(values) == 1
	if ok {
		key, ok = idempotencyKey(strings.TrimSpace(values[0]))
	}
	if !ok {
		return "", web.NewProblem(http.StatusBadRequest,
			fmt.Sprintf("%s: must be one key of 1 to %d visible ASCII characters, in double quotes or without",
				keyHeader, maxKey))
	}
	if sender == "" {
		return key, nil
	}
	return strconv.Quote(sender) + key, nil
}

// idempotencyKey reads the key as it is, or as the string of RFC 9651 that the draft asks for.
func idempotencyKey(text string) (key string, ok bool) {
	if strings.HasPrefix(text, `"`) {
		text, ok = unquote(text)
		if !ok {
			return "", false
		}
	}
	visible := strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
	return text, visible && text != "" && len(text) <= maxKey
}

// unquote reads a string of RFC 9651: quotes and backslashes, and nothing else, are escaped.
func unquote(text string) (string, bool) {
	var out strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			return out.String(), i == len(text)-1
		case '\\':
			i++
			if i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", false
			}
			out.WriteByte(text[i])
		default:
			out.WriteByte(c)
		}
	}
	return "", false // no closing quote
}

// Senders of CloudEvents ask in this way whether they may deliver here (HTTP 1.1 Web Hooks for Event
// Delivery, section 4), so that they cannot be made to flood a service that expects no events.
const (
	requestOrigin = "WebHook-Request-Origin"
	allowedOrigin = "WebHook-Allowed-Origin"
	allowedRate   = "WebHook-Allowed-Rate"
)

// senderName matches names that can be a DNS expression: no other text is repeated in an answer.
var senderName = regexp.MustCompile(`^[A-Za-z0-9*_.:-]{1,253}$`)

// serveHandshake is OPTIONS /v1/hits. It consents if the sender could deliver with this token, if one is
// needed; it must have no prefixes, because an event names no key. COLLECT_ORIGINS is about pages, not
// senders. A CORS preflight gets no CORS headers, so that no page may post here. WebHook-Request-Callback is
// not called: the answer is complete, and strangers' addresses are not contacted.
func (h *hitsHandler) serveHandshake(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", "OPTIONS, POST")
	names := r.Header.Values(requestOrigin)
	if len(names) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if len(names) > 1 || !senderName.MatchString(names[0]) {
		web.NewProblem(http.StatusBadRequest, fmt.Sprintf("%s: must be one name of a sender, such as "+
			"events.example.com", requestOrigin)).Write(w)
		return
	}
	token, p := h.callers.check(r)
	if p == nil {
		p = mayDeliver(token)
	}
	if p != nil {
		p.Write(w)
		return
	}
	w.Header().Set(allowedOrigin, names[0])
	w.Header().Set(allowedRate, "*") // what is too much at a time is answered 503 with Retry-After
	w.WriteHeader(http.StatusNoContent)
}

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
		return nil, web.NewProblem(http.StatusForbidden,
			fmt.Sprintf("%s is not for pages of other origins: they use %s or %s", r.URL.Path, beaconPath, gifPath))
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
