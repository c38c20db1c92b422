package collect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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
	return &workspace{body: make([]byte, 0, freeBytes), parser: hit.NewParser(), events: rules.NewChecker()}
}}

// free returns the memory for the next request, unless it is large.
func (w *workspace) free() {
	if cap(w.body) > mostPooled {
		return // the parser has grown, too
	}
	workspaces.Put(w)
}

// receive reads a body of at most most bytes into the workspace, which grows only with what arrives, whatever
// the client announces.
func (space *workspace) receive(w http.ResponseWriter, r *http.Request, most int64, held *hold) error {
	err := errLarge
	if r.ContentLength <= most {
		space.body, err = fill(r.Body, space.body[:0], most, held)
	}
	if err != nil {
		w.Header().Set("Connection", "close") // what is left of the body is not read
	}
	return err
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
	zstd    *zstd.Decoder
}

func newBodyReader(maxBody int64) (*bodyReader, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(uint64(maxBody)+1))
	return &bodyReader{maxBody, d}, err
}

// read reads a request's body and unpacks it. The result is valid as long as the workspace is.
func (b *bodyReader) read(w http.ResponseWriter, r *http.Request, space *workspace, held *hold) ([]byte, *web.Problem) {
	how, p := encodingOf(r)
	if p != nil {
		return nil, p
	}
	if r.ContentLength < 0 || r.ContentLength > freeBytes { // a small body comes with its header
		boundArrival(w)
	}
	err := space.receive(w, r, b.maxBody, held)
	if err == nil && how == plain {
		return space.body, nil
	}
	var body []byte
	if err == nil {
		body, err = b.unpack(how, space.body, held)
	}
	if errors.Is(err, errLarge) {
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

// unpack unpacks a body. held is resized from the packed bytes to both.
func (b *bodyReader) unpack(how encoding, packed []byte, held *hold) ([]byte, error) {
	if how == gzipped {
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, errPacked{how, err}
		}
		more := &hold{budget: held.budget}
		out, err := fill(r, nil, b.maxBody, more)
		held.n += more.n
		if err != nil && !errors.Is(err, errLarge) && !errors.Is(err, errNoRoom) {
			return nil, errPacked{how, err}
		}
		return out, err
	}
	if !held.resize(cap(packed) + int(b.maxBody) + freeBytes) {
		return nil, errNoRoom
	}
	out, err := b.zstd.DecodeAll(packed, nil)
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded),
		int64(len(out)) > b.maxBody:
		return nil, errLarge
	case err != nil:
		return nil, errPacked{how, err}
	}
	held.resize(cap(packed) + cap(out)) // it only gives back
	return out, nil
}

type errPacked struct {
	how encoding
	err error
}

func (e errPacked) Error() string {
	return fmt.Sprintf("body: not %s, although Content-Encoding names it (%v)", e.how, e.err)
}

var (
	errLarge  = errors.New("larger than allowed")
	errNoRoom = errors.New("no room for it in memory")
)

func fill(r io.Reader, buf []byte, most int64, held *hold) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			size := max(2*cap(buf), freeBytes)
			if !held.resize(size) {
				return buf, errNoRoom
			}
			buf = append(make([]byte, 0, size), buf...)
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > most:
			return buf, errLarge
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return buf, err
		}
	}
}

// bodyProblem is the problem of a body that could not be read, or nil.
func bodyProblem(err error) *web.Problem {
	var network net.Error
	var packed errPacked
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoRoom):
		return noRoom("COLLECT_MAX_WAITING")
	case errors.As(err, &packed):
		return web.NewProblem(http.StatusBadRequest, packed.Error())
	case errors.As(err, &network) && network.Timeout():
		return web.NewProblem(http.StatusRequestTimeout, fmt.Sprintf("body: did not arrive within %v", bodyWithin))
	}
	return web.NewProblem(http.StatusBadRequest, "body: ended before its end")
}
