package collect

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"tallyroll/internal/hit"
	"tallyroll/internal/rules"
	"tallyroll/internal/web"
)

const hitsPath = "/v1/hits"

// bodyWithin is how long the body of a request may take to arrive.
const bodyWithin = 10 * time.Second

// workspace is what reading one request needs. It is used again for others.
type workspace struct {
	body   []byte
	parser *hit.Parser
	events *rules.Checker
}

var workspaces = sync.Pool{New: func() any {
	return &workspace{body: make([]byte, 0, freeBytes), parser: hit.NewParser(), events: rules.NewChecker()}
}}

// free gives the memory to the next request, unless it is much.
func (w *workspace) free() {
	if cap(w.body) > mostPooled {
		return // the parser has grown, too
	}
	workspaces.Put(w)
}

// serveHits is POST /v1/hits.
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

// read reads and checks a request.
func (s *service) read(w http.ResponseWriter, r *http.Request, mode rules.Mode) (*entry, *web.Problem) {
	from, p := s.caller(r)
	if p != nil {
		return nil, p
	}
	id, p := messageID(r, from)
	if p != nil {
		return nil, p
	}
	if mode != rules.NoCloudEvent {
		return s.readEvents(w, r, mode, from, id)
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
	p = outside(hits, from.prefix)
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

// write sends 202. Written by hand, it costs a tenth of what encoding/json takes.
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

// problemOf is the problem that an error is.
func problemOf(err error) *web.Problem {
	var p *web.Problem
	if errors.As(err, &p) {
		return p
	}
	return web.NewProblem(http.StatusInternalServerError, "a fault of this service: "+err.Error())
}
