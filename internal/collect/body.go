package collect

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

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
	return web.NewProblem(http.StatusServiceUnavailable, detail).Of(web.NotStored).With("Retry-After", "1")
}
