package web

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// FreeBytes of each request are covered by the bound on requests, so that large bodies do not keep small ones
// out.
const FreeBytes = 4 << 10

// Budget bounds what requests hold in memory, whatever clients send and however slowly.
type Budget struct {
	maxRequests, maxBytes int64
	requests, bytes       atomic.Int64
}

func NewBudget(maxRequests, maxBytes int64) *Budget {
	return &Budget{maxRequests: maxRequests, maxBytes: maxBytes}
}

// BodyBudget returns the budget of a service whose bodies are questions: 40 MiB of small ones, and 64 MiB of
// what is larger.
func BodyBudget() *Budget { return NewBudget(10_000, 64<<20) }

// Enter lets a request in, which must then leave, or returns false.
func (b *Budget) Enter() bool {
	if b.requests.Add(1) > b.maxRequests {
		b.requests.Add(-1)
		return false
	}
	return true
}

func (b *Budget) Leave() { b.requests.Add(-1) }

// Requests returns the number of requests under way.
func (b *Budget) Requests() int64 { return b.requests.Load() }

// Bytes returns what they hold, beyond the first FreeBytes of each.
func (b *Budget) Bytes() int64 { return b.bytes.Load() }

// Hold returns a request's share of the budget's bytes, for now none.
func (b *Budget) Hold() Hold { return Hold{budget: b} }

// Hold is one request's share of a budget's bytes.
type Hold struct {
	budget *Budget
	n      int64
}

// Resize makes the hold fit this many bytes of a request. It changes nothing if that exceeds the bound.
func (h *Hold) Resize(bytes int) bool {
	n := max(0, int64(bytes)-FreeBytes)
	more := n - h.n
	if more > 0 && h.budget.bytes.Add(more) > h.budget.maxBytes {
		h.budget.bytes.Add(-more)
		return false
	}
	if more < 0 {
		h.budget.bytes.Add(more)
	}
	h.n = n
	return true
}

// Join moves what another hold of the budget has into this one.
func (h *Hold) Join(other Hold) { h.n += other.n }

// Why a body is not in memory.
var (
	ErrLarge  = errors.New("larger than allowed")
	ErrNoRoom = errors.New("no room for it in memory")
)

// ReadBody reads a body of at most most bytes into buf, which grows only with what arrives, whatever the
// client announces.
func (h *Hold) ReadBody(w http.ResponseWriter, r *http.Request, buf []byte, most int64) ([]byte, error) {
	err := ErrLarge
	if r.ContentLength <= most {
		buf, err = h.Fill(r.Body, buf, most)
	}
	if err != nil {
		w.Header().Set("Connection", "close") // what is left of the body is not read
	}
	return buf, err
}

// Body is a request's body in memory. Close gives its share of the budget back.
type Body struct {
	bytes.Buffer
	held Hold
}

func (b *Body) Close() error {
	b.held.Resize(0)
	b.held.budget.Leave()
	return nil
}

// ReadBody reads a request's body of at most most bytes. Its error is ErrLarge, ErrNoRoom or the
// connection's. The server closes the body that was read.
func (b *Budget) ReadBody(w http.ResponseWriter, r *http.Request, most int64) (*Body, error) {
	if !b.Enter() {
		return nil, ErrNoRoom
	}
	out := &Body{held: b.Hold()}
	room := min(max(r.ContentLength+1, bytes.MinRead), FreeBytes)
	data, err := out.held.ReadBody(w, r, make([]byte, 0, room), most)
	if err != nil {
		out.Close()
		return nil, err
	}
	out.Buffer = *bytes.NewBuffer(data)
	return out, nil
}

// Fill reads at most most bytes into buf, if the hold has room for that, or into a new one.
func (h *Hold) Fill(r io.Reader, buf []byte, most int64) ([]byte, error) {
	if !h.Resize(cap(buf)) {
		buf = nil
	}
	buf = buf[:0]
	for {
		if len(buf) == cap(buf) {
			size := max(2*cap(buf), FreeBytes)
			if !h.Resize(size) {
				return buf, ErrNoRoom
			}
			buf = append(make([]byte, 0, size), buf...)
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > most:
			return buf, ErrLarge
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return buf, err
		}
	}
}
