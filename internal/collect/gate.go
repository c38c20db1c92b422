package collect

import "sync/atomic"

// freeBytes of each request's memory are covered by the bound on requests, so that a few large
// bodies do not keep small ones out.
const freeBytes = 4 << 10

// gate bounds what requests hold in memory, however many clients there are and whatever they send.
type gate struct {
	maxRequests, maxBytes int64
	requests, bytes       atomic.Int64
}

// enter lets a request in, or not. One that was let in must leave.
func (g *gate) enter() bool {
	if g.requests.Add(1) > g.maxRequests {
		g.requests.Add(-1)
		return false
	}
	return true
}

func (g *gate) leave() { g.requests.Add(-1) }

// hold is what one request has of the gate's bytes.
type hold struct {
	gate *gate
	n    int64
}

// resize makes the hold as large as a request's memory of so many bytes needs. If there is no room for
// more, it changes nothing.
func (h *hold) resize(bytes int) bool {
	n := max(0, int64(bytes)-freeBytes)
	more := n - h.n
	if more > 0 && h.gate.bytes.Add(more) > h.gate.maxBytes {
		h.gate.bytes.Add(-more)
		return false
	}
	if more < 0 {
		h.gate.bytes.Add(more)
	}
	h.n = n
	return true
}
