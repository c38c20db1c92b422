package collect

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"tallyroll/internal/access"
	"tallyroll/internal/hit"
	"tallyroll/internal/rules"
	"tallyroll/internal/web"
)

const hitsPath = "/v1/hits"

// bodyWithin bounds how long a request's body may take to arrive.
const bodyWithin = 10 * time.Second

type workspace struct {
	body   []byte
	parser *hit.Parser
	events *rules.Checker
}

var workspaces = sync.Pool{New: func() any {
	return &workspace{body: make([]byte, 0, freeBytes), parser: hit.NewParser(), events: rules.NewChecker()}
}}

func (s *service) serveHits(w http.ResponseWriter, r *http.Request) {
	e, p := s.read(w, r, eventMode(r))
	if p != nil {
		p.Write(w)
		return
	}
	got, err := s.store(r.Context(), e)
	if err != nil {
		problemOf(err).Write(w)
		return
	}
	got.write(w)
}

func (s *service) read(w http.ResponseWriter, r *http.Request, mode rules.Mode) (*entry, *web.Problem) {
	token, p := s.caller(r)
	if p != nil {
		return nil, p
	}
	id, p := messageID(r, token.Name())
	if p != nil {
		return nil, p
	}
	if mode != rules.NoCloudEvent {
		return s.readEvents(w, r, mode, token, id)
	}
	p = checkType(r)
	if p != nil {
		return nil, p
	}
	space := workspaces.Get().(*workspace)
	defer space.free()
	held := hold{gate: &s.gate}
	defer held.resize(0)
	body, p := s.body(w, r, space, &held)
	if p != nil {
		return nil, p
	}
	hits, p := parse(space.parser, body, s.settings.MaxHits)
	if p != nil {
		return nil, p
	}
	p = outside(hits, token)
	if p != nil {
		return nil, p
	}
	held.resize(0) // the entry holds its own memory
	e := newEntry(&s.gate, hits, id)
	if e == nil {
		return nil, noRoom("COLLECT_MAX_WAITING")
	}
	return e, nil
}

// free returns the memory for the next request, unless it is large.
func (w *workspace) free() {
	if cap(w.body) > mostPooled {
		return // the parser has grown, too
	}
	workspaces.Put(w)
}

// body reads the body and unpacks it. It is valid as long as the workspace is.
func (s *service) body(w http.ResponseWriter, r *http.Request, space *workspace, held *hold) ([]byte, *web.Problem) {
	how, p := encodingOf(r)
	if p != nil {
		return nil, p
	}
	if r.ContentLength < 0 || r.ContentLength > freeBytes { // a small body comes with its header
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWithin)) // not every writer has deadlines: those of tests do not
	}
	body, p := s.readBody(r, space.body, held)
	space.body = body
	if p != nil {
		w.Header().Set("Connection", "close") // what is left of the body is not read
		return nil, p
	}
	if how != plain {
		unpacked, err := s.unpacker.unpack(how, body, s.settings.MaxBody, held)
		var packed errPacked
		if errors.As(err, &packed) {
			return nil, web.NewProblem(http.StatusBadRequest, packed.Error())
		}
		if err != nil {
			return nil, s.bodyProblem(err)
		}
		body = unpacked
	}
	return body, nil
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
	w.Header()["Content-Type"] = JSONType
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(b) // the client may be gone
}

var JSONType = []string{"application/json"}

func problemOf(err error) *web.Problem {
	var p *web.Problem
	if errors.As(err, &p) {
		return p
	}
	return web.NewProblem(http.StatusInternalServerError, "a fault of this service: "+err.Error())
}

// maxErrors bounds the bad items that an answer names.
const maxErrors = 100

// parse reads a body's hits by the workers' rules, so that they count what is accepted. One bad item refuses
// all.
func parse(p *hit.Parser, body []byte, maxHits int) ([]hit.Hit, *web.Problem) {
	return parseUpTo(p, body, maxHits, "COLLECT_MAX_HITS")
}

func parseUpTo(p *hit.Parser, body []byte, maxHits int, bound string) ([]hit.Hit, *web.Problem) {
	if hit.Blank(body) {
		return nil, web.NewProblem(http.StatusBadRequest, "body: it is empty: allowed are a hit such as {\"key\":\"/cart\"}, an array of hits, or one hit per line")
	}
	hits, rejects := p.ParseBody(body, maxHits)
	if len(rejects) == 0 && len(hits) == 0 {
		return nil, web.NewProblem(http.StatusBadRequest, "body: the array is empty and has no hit: send nothing if nothing happened")
	}
	if len(rejects) == 0 {
		return hits, nil
	}
	if rejects[0].Reason == hit.TooLarge {
		return nil, web.NewProblem(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("body: it has more than %d hits, the most allowed (%s): send them in several requests", maxHits, bound))
	}
	bad := make([]web.ProblemDetail, 0, min(len(rejects), maxErrors))
	for _, r := range rejects[:min(len(rejects), maxErrors)] {
		bad = append(bad, web.ProblemDetail{Location: item(r.Item), Message: sentence(r.Detail)})
	}
	return nil, itemsProblem(http.StatusBadRequest, bad, len(rejects))
}

func outside(hits []hit.Hit, token *access.Token) *web.Problem {
	if !token.Narrow() {
		return nil
	}
	var bad []web.ProblemDetail
	n := 0
	for i, h := range hits {
		err := token.CheckKey(string(h.Counter))
		if err == nil {
			continue
		}
		n++
		if n <= maxErrors {
			bad = append(bad, web.ProblemDetail{Location: item(i), Message: err.Error()})
		}
	}
	if n == 0 {
		return nil
	}
	return itemsProblem(http.StatusForbidden, bad, n).OfKind(web.KeyOutsidePrefix)
}

func item(i int) string { return fmt.Sprintf("body[%d]", i) }

// maxDetail bounds an item's detail in bytes, because it repeats names of any length.
const maxDetail = 500

func sentence(detail string) string {
	if len(detail) > maxDetail {
		detail = detail[:maxDetail] + "…"
	}
	return strings.ToValidUTF8(detail, "\ufffd")
}

func itemsProblem(status int, bad []web.ProblemDetail, total int) *web.Problem {
	p := web.NewProblem(status, fmt.Sprintf("%s: %s", bad[0].Location, bad[0].Message))
	p.Errors = bad
	switch {
	case total > len(bad):
		p.Detail += fmt.Sprintf("; and %d more items are bad, of which errors names the first %d; nothing of this request is stored", total-1, len(bad)-1)
	case total > 1:
		p.Detail += fmt.Sprintf("; and %d more items are bad (errors names them); nothing of this request is stored", total-1)
	default:
		p.Detail += "; nothing of this request is stored"
	}
	return p
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
		return web.NewProblem(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type %s is not taken: a body is in UTF-8", web.Excerpt(given)))
	case strings.HasPrefix(name, "text/"), strings.HasSuffix(name, "+json"), isTextual[name]:
		return nil
	}
	return web.NewProblem(http.StatusUnsupportedMediaType,
		fmt.Sprintf("Content-Type %s is not taken: allowed are application/json (an object or an array), application/x-ndjson (an object per line), text/plain, application/cloudevents+json, application/cloudevents-batch+json and none", web.Excerpt(given))).
		WithHeader("Accept-Post", "application/json, application/x-ndjson, text/plain, application/cloudevents+json, application/cloudevents-batch+json")
}

var isTextual = map[string]bool{
	"application/json": true, "application/x-ndjson": true, "application/ndjson": true, "application/jsonl": true, "application/x-jsonlines": true,
	"application/jsonlines": true, "application/json-lines": true, "application/json-seq": false,
	"application/x-www-form-urlencoded": true, // what curl -d sends for any body
}

// keyHeader makes a client's retry safe (draft-ietf-httpapi-idempotency-key-header).
const keyHeader = "Idempotency-Key"

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
			fmt.Sprintf("%s: allowed is one key of 1 to %d visible ASCII characters, in double quotes or without", keyHeader, maxKey))
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
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return "", false
		}
	}
	return text, text != "" && len(text) <= maxKey
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
