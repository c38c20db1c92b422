package collect

import (
	"context"

	"tallyroll/internal/hit"
)

// receipt says where JetStream has stored the hits of a request.
type receipt struct {
	Stored    int    `json:"stored" doc:"Hits of the request." example:"3"`
	Stream    string `json:"stream" doc:"The stream that has stored them." example:"HITS"`
	Sequence  uint64 `json:"sequence" doc:"The message's sequence in the stream. Requests that came together share one message." example:"812"`
	Duplicate bool   `json:"duplicate,omitempty" doc:"True if an earlier request with the same Idempotency-Key had stored them." example:"true"`
}

// accept stores hits and returns when JetStream has stored them. With an id, they are a message
// of their own with that Nats-Msg-Id; without, they share one with those of other requests.
// The error is a *web.Problem: 503 if the hits are surely not stored, 504 if that is unknown.
func (s *service) accept(ctx context.Context, hits []hit.Hit, id string) (receipt, error) {
	e := newEntry(&s.gate, hits, id)
	if e == nil {
		return receipt{}, noRoom("COLLECT_MAX_WAITING")
	}
	return s.store(ctx, e)
}

// store is accept for hits that are written down already. The entry is the store's from then on.
func (s *service) store(ctx context.Context, e *entry) (receipt, error) {
	defer e.free()
	p := s.publisher.Load()
	if p == nil {
		return receipt{}, notStored("NATS has not answered yet: nothing of this request is stored; send it again in a second")
	}
	most, bound := p.most()
	if e.size() > most {
		return receipt{}, tooLargeFor(bound)
	}
	o := p.store(e)
	if o.problem != nil {
		return receipt{}, o.problem
	}
	if o.duplicate && e.id != "" {
		if p := s.sameAsFirst(ctx, e, o); p != nil {
			return receipt{}, p
		}
	}
	return receipt{Stored: e.hits, Stream: o.stream, Sequence: o.sequence, Duplicate: o.duplicate && e.id != ""}, nil
}
