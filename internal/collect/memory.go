package collect

import "sync/atomic"

const (
	// freeBytes of each request are covered by the bound on requests, so that large bodies do not keep small
	// ones out.
	freeBytes = 4 << 10
	// mostPooled bounds the memory, in bytes, that is kept for the next request.
	mostPooled = 64 << 10
)

// budget bounds what requests hold in memory, whatever clients send.
type budget struct {
	maxRequests, maxBytes int64
	requests, bytes       atomic.Int64
}

// enter admits a request, which must then leave, or returns false.
func (b *budget) enter() bool {
	if b.requests.Add(1) > b.maxRequests {
		b.requests.Add(-1)
		return false
	}
	return true
}

func (b *budget) leave() { b.requests.Add(-1) }

// hold is one request's share of the budget's bytes.
type hold struct {
	budget *budget
	n      int64
}

// resize makes the hold fit this many bytes of a request. It changes nothing if that exceeds the bound.
func (h *hold) resize(bytes int) bool {
	n := max(0, int64(bytes)-freeBytes)
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
