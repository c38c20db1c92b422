package collect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"tallyroll/internal/web"
)

// readBody reads the body of a request into memory that grows with what arrives: a client that announces
// much and sends little costs little. It puts what it has read into buf.
func (s *service) readBody(r *http.Request, buf []byte, held *hold) ([]byte, *web.Problem) {
	if r.ContentLength > s.settings.MaxBody {
		return buf, s.tooLarge()
	}
	buf, err := fill(r.Body, buf[:0], s.settings.MaxBody, held)
	return buf, s.bodyProblem(err)
}

func (s *service) bodyProblem(err error) *web.Problem {
	var network net.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errLarge):
		return s.tooLarge()
	case errors.Is(err, errNoRoom):
		return noRoom("COLLECT_MAX_WAITING")
	case errors.As(err, &network) && network.Timeout():
		return web.NewProblem(http.StatusRequestTimeout, fmt.Sprintf("body: it did not arrive within %v", bodyWithin))
	}
	return web.NewProblem(http.StatusBadRequest, "body: it broke off before its end")
}

func (s *service) tooLarge() *web.Problem {
	return web.NewProblem(http.StatusRequestEntityTooLarge,
		fmt.Sprintf("body: it has more than %d bytes, the most allowed (COLLECT_MAX_BODY): send the hits in several requests", s.settings.MaxBody))
}

// noRoom is the answer if a bound of this service is reached: nothing of the request is stored.
func noRoom(setting string) *web.Problem {
	return notStored(fmt.Sprintf("too much is waiting to be stored (%s): nothing of this request is stored; send it again in a second", setting))
}

// notStored is the answer if a request's hits are surely not stored.
func notStored(detail string) *web.Problem {
	return web.NewProblem(http.StatusServiceUnavailable, detail).OfKind(web.NotStored).WithHeader("Retry-After", "1")
}

// encoding is how a body is packed.
type encoding string

const (
	plain    encoding = ""
	gzipped  encoding = "gzip"
	zstdized encoding = "zstd"
)

// encodingOf reads Content-Encoding.
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
			fmt.Sprintf("Content-Encoding %s is not taken: allowed are gzip, zstd and none", web.Excerpt(given))).WithHeader("Accept-Encoding", "gzip, zstd")
	}
}

// unpacker unpacks whole bodies. They are in memory by then, so no client can hold an unpacker up.
type unpacker struct{ zstd *zstd.Decoder }

func newUnpacker(maxBody int64) (*unpacker, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(uint64(maxBody)+1))
	return &unpacker{d}, err
}

// unpack unpacks a body. held holds the packed bytes, and then the unpacked ones too.
func (u *unpacker) unpack(how encoding, packed []byte, most int64, held *hold) ([]byte, error) {
	if how == gzipped {
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, errPacked{how, err}
		}
		more := &hold{gate: held.gate}
		out, err := fill(r, nil, most, more)
		held.n += more.n
		if err != nil && !errors.Is(err, errLarge) && !errors.Is(err, errNoRoom) {
			return nil, errPacked{how, err}
		}
		return out, err
	}
	if !held.resize(cap(packed) + int(most) + freeBytes) {
		return nil, errNoRoom
	}
	out, err := u.zstd.DecodeAll(packed, nil)
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded), int64(len(out)) > most:
		return nil, errLarge
	case err != nil:
		return nil, errPacked{how, err}
	}
	held.resize(cap(packed) + cap(out)) // it only gives back
	return out, nil
}

// Why fill stops before the end.
var (
	errLarge  = errors.New("larger than allowed")
	errNoRoom = errors.New("no room for it in memory")
)

// fill appends to buf what r has, at most most bytes.
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

// errPacked says that a body is not what Content-Encoding says.
type errPacked struct {
	how encoding
	err error
}

func (e errPacked) Error() string {
	return fmt.Sprintf("body: it is not %s, as Content-Encoding says (%v)", e.how, e.err)
}
