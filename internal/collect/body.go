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

// readBody reads a request's body into buf, which grows only with what arrives, whatever the client
// announces.
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

func noRoom(setting string) *web.Problem {
	return notStored(fmt.Sprintf("too much is waiting to be stored (%s): nothing of this request is stored; send it again in a second", setting))
}

func notStored(detail string) *web.Problem {
	return web.NewProblem(http.StatusServiceUnavailable, detail).OfKind(web.NotStored).WithHeader("Retry-After", "1")
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
			fmt.Sprintf("Content-Encoding %s is not taken: allowed are gzip, zstd and none", web.Excerpt(given))).WithHeader("Accept-Encoding", "gzip, zstd")
	}
}

// unpacker unpacks whole bodies in memory, so no slow client can hold it up.
type unpacker struct{ zstd *zstd.Decoder }

func newUnpacker(maxBody int64) (*unpacker, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(uint64(maxBody)+1))
	return &unpacker{d}, err
}

// unpack unpacks a body. held is resized from the packed bytes to both.
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

type errPacked struct {
	how encoding
	err error
}

func (e errPacked) Error() string {
	return fmt.Sprintf("body: it is not %s, as Content-Encoding says (%v)", e.how, e.err)
}
