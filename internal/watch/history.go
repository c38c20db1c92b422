package watch

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// historyMost is how many of the newest changes a History holds: some megabytes.
const historyMost = 10_000

// Standing is the state of a rule's key now.
type Standing struct {
	Said
	Since time.Time `json:"since" doc:"When the state began." example:"2026-11-21T09:58:00Z"`
}

// Change is a change of a state in the past.
type Change struct {
	ID string `json:"id" doc:"The id that targets were told, too." example:"1kx0c1f2p3s40-812"`
	Said
	Previous State  `json:"previous,omitempty" doc:"The state before; absent if there was none." enum:"ok,pending,firing,resolved,unknown" example:"pending"`
	Quiet    bool   `json:"quiet,omitempty" doc:"True if no target was told: it knew of nothing else." example:"false"`
	Position uint64 `json:"position" doc:"Its sequence in the stream, for before." example:"812"`
}

// History is the states of a namespace and their newest changes, read from its stream and held in memory. The zero value
// is empty. It is safe for concurrent use.
type History struct {
	mu      sync.Mutex
	log     *log // of the stream as it is followed now; nil: there is none
	ready   bool // it has been read to its end
	changes []Change
}

// Follow reads the stream of a namespace until ctx ends. If there is none, it waits for one; if it is deleted, the history begins anew.
func (h *History) Follow(ctx context.Context, js jetstream.JetStream, namespace string) {
	for ctx.Err() == nil {
		_ = h.follow(ctx, js, namespace) // whatever has failed, it is tried again
		h.reset(nil)
		select {
		case <-ctx.Done():
		case <-time.After(lookAtStream):
		}
	}
}

// follow reads one stream until it is another one.
func (h *History) follow(ctx context.Context, js jetstream.JetStream, namespace string) error {
	stream, err := js.Stream(ctx, StreamName(namespace))
	if err != nil {
		return err
	}
	l := newLog(js, namespace)
	l.told = h.add
	h.reset(l)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	guarded := make(chan struct{})
	go func() {
		defer close(guarded)
		defer cancel()
		_ = l.guard(ctx, stream.CachedInfo().Created)
	}()
	err = l.follow(ctx, jetstream.DeliverAllPolicy, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.ready = true
	})
	cancel()
	<-guarded
	return err
}

func (h *History) reset(l *log) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log, h.ready, h.changes = l, false, nil
}

// add keeps a change. The log calls it in the order of the stream.
func (h *History) add(e *entry) {
	if e.State == "" || e.Quiet && e.State == e.Previous { // not a record, or one that only keeps a state from being forgotten
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.changes) >= 2*historyMost {
		h.changes = append([]Change(nil), h.changes[len(h.changes)-historyMost:]...)
	}
	h.changes = append(h.changes, Change{identify(e.seq, e.stored), e.Said, e.Previous, e.Quiet, e.seq})
}

// Report is what a history knows.
type Report struct {
	Ready     bool // it has read the stream, or there is none
	Exists    bool // there is a stream
	Evaluated time.Time
	Blind     bool // the process that evaluates does not see Redis
	Rules     int
	States    []Standing // what calls for attention first
	Changes   []Change   // the oldest first
}

// severity is the order in which states call for attention.
var severity = []State{Firing, Unknown, Pending, Resolved, OK}

// Report returns what is known now. The changes must not be changed.
func (h *History) Report() Report {
	h.mu.Lock()
	l, out := h.log, Report{Ready: h.ready || h.log == nil, Exists: h.log != nil}
	out.Changes = h.changes[max(0, len(h.changes)-historyMost):]
	h.mu.Unlock()
	if l == nil {
		return out
	}
	b, _, _ := l.seat()
	out.Evaluated, out.Blind, out.Rules = b.At, b.Blind, b.Rules
	for _, e := range l.snapshot() {
		if e.live() {
			out.States = append(out.States, Standing{e.Said, e.Since})
		}
	}
	slices.SortFunc(out.States, func(a, b Standing) int {
		return cmp.Or(slices.Index(severity, a.State)-slices.Index(severity, b.State), strings.Compare(a.Rule, b.Rule), strings.Compare(a.Key, b.Key))
	})
	return out
}
