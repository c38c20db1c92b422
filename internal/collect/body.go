package collect

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"tallyroll/internal/hit"
	"tallyroll/internal/rules"
	"tallyroll/internal/web"
)

// bodyWithin bounds how long a request's body may take to arrive.
const bodyWithin = 10 * time.Second

// workspace is the memory in which a request is read. Later requests reuse it.
type workspace struct {
	body   []byte
	parser *hit.Parser
	events *rules.Checker
}

var workspaces = sync.Pool{New: func() any {
	return &workspace{body: make([]byte, 0, web.FreeBytes), parser: hit.NewParser(), events: rules.NewChecker()}
}}

// free returns the memory for the next request, unless it is large.
func (w *workspace) free() {
	if cap(w.body) > mostPooled {
		return // the parser has grown, too
	}
	workspaces.Put(w)
}

// boundArrival bounds how long the rest of a body may take.
func boundArrival(w http.ResponseWriter) {
	// the writers of tests have no deadlines
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWithin))
}

// bodyReader reads the bodies of requests. It unpacks them whole in memory, so that no slow client holds it
// up.
type bodyReader struct {
	maxBody int64 // bytes, also after unpacking
	budget  *web.Budget
	zstd    *zstd.Decoder
}

func newBodyReader(maxBody int64, budget *web.Budget) (*bodyReader, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true),
		zstd.WithDecodeAllCapLimit(true)) // a frame's window, of any size, is the body itself, and needs no memory
	return &bodyReader{maxBody, budget, d}, err
}

// read reads a request's body and unpacks it. The result is valid as long as the workspace is.
func (b *bodyReader) read(w http.ResponseWriter, r *http.Request, space *workspace,
	held *web.Hold) ([]byte, *web.Problem) {
	how, p := encodingOf(r)
	if p != nil {
		return nil, p
	}
	if r.ContentLength < 0 || r.ContentLength > web.FreeBytes { // a small body comes with its header
		boundArrival(w)
	}
	var err error
	space.body, err = held.ReadBody(w, r, space.body, b.maxBody)
	if err == nil && how == plain {
		return space.body, nil
	}
	var body []byte
	if err == nil {
		body, err = b.unpack(how, space.body, held)
	}
	if errors.Is(err, web.ErrLarge) {
		return nil, tooLarge(b.maxBody)
	}
	return body, bodyProblem(err)
}

type encoding string

const (
	plain    encoding = ""
	gzipped  encoding = "gzip"
	zstdized encoding = "zstd"
)

func encodingOf(r *http.Request) (encoding, *web.Problem) {
	values := r.Header["Content-Encoding"]
	if len(values) == 0 {
		return plain, nil
	}
	switch given := strings.ToLower(strings.TrimSpace(strings.Join(values, ","))); given {
	case "", "identity":
		return plain, nil
	case "gzip", "x-gzip":
		return gzipped, nil
	case "zstd":
		return zstdized, nil
	default:
		return plain, web.NewProblem(http.StatusUnsupportedMediaType,
			fmt.Sprintf("Content-Encoding %s is not supported: must be gzip, zstd or none",
				web.Excerpt(given))).WithHeader("Accept-Encoding", "gzip, zstd")
	}
}

// unpack unpacks a body. held is resized from the packed bytes to both. A frame of zstd need not have its
// content's size, so the buffer for it grows.
func (b *bodyReader) unpack(how encoding, packed []byte, held *web.Hold) ([]byte, error) {
	if how == gzipped {
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, errPacked{how, err}
		}
		more := b.budget.Hold()
		out, err := more.Fill(r, nil, b.maxBody)
		held.Join(more)
		if err != nil && !errors.Is(err, web.ErrLarge) && !errors.Is(err, web.ErrNoRoom) {
			return nil, errPacked{how, err}
		}
		return out, err
	}
	for size := 16 * web.FreeBytes; ; size *= 8 {
		size = min(size, int(b.maxBody))
		if !held.Resize(cap(packed) + size + beyond) {
			return nil, web.ErrNoRoom
		}
		out, err := b.zstd.DecodeAll(packed, make([]byte, 0, size+beyond))
		switch {
		case err == nil && len(out) <= int(b.maxBody):
			return out, nil
		case len(out) <= size && !errors.Is(err, zstd.ErrDecoderSizeExceeded):
			return nil, errPacked{how, err}
		case size == int(b.maxBody):
			return nil, web.ErrLarge
		}
	}
}

// beyond is two of zstd's blocks: an output that finds no room for a block has passed its size by then.
const beyond = 256 << 10

type errPacked struct {
	how encoding
	err error
}

func (e errPacked) Error() string {
	return fmt.Sprintf("body: not %s, although Content-Encoding names it (%v)", e.how, e.err)
}

// bodyProblem is the problem of a body that could not be read, or nil.
func bodyProblem(err error) *web.Problem {
	var network net.Error
	var packed errPacked
	switch {
	case err == nil:
		return nil
	case errors.Is(err, web.ErrNoRoom):
		return noRoom("COLLECT_MAX_WAITING")
	case errors.As(err, &packed):
		return web.NewProblem(http.StatusBadRequest, packed.Error())
	case errors.As(err, &network) && network.Timeout():
		return web.NewProblem(http.StatusRequestTimeout, fmt.Sprintf("body: did not arrive within %v", bodyWithin))
	}
	return web.NewProblem(http.StatusBadRequest, "body: ended before its end")
}
