package watch

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"tallyroll/internal/platform/wait"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// maxHistory bounds the changes of a History: some megabytes.
const maxHistory = 10_000

// Standing is the current state of a rule's key.
type Standing struct {
	KeyState
	Since time.Time `json:"since" doc:"When the state began." example:"2026-11-21T09:58:00Z"`
}

// Change is a past change of a state.
type Change struct {
	ID string `json:"id" doc:"The id that targets receive, too." example:"1kx0c1f2p3s40-812"`
	KeyState
	Previous State     `json:"previous,omitempty" doc:"The state before; absent if there was none." enum:"ok,pending,firing,resolved,unknown" example:"pending"`
	Quiet    bool      `json:"quiet,omitempty" doc:"True if no target was notified, because none had been notified of trouble." example:"false"`
	Position uint64    `json:"position" doc:"Its sequence in the stream, for before." example:"812"`
	GivenUp  []GivenUp `json:"given_up,omitempty" doc:"The targets to which it is no longer delivered, because they refused it or were away for too long."`
}

// History holds a namespace's states and newest changes. The zero value is empty. Safe for concurrent use.
type History struct {
	mu      sync.Mutex
	stream  *stateStream // nil: there is no stream
	ready   bool         // the stream was read to its end
	changes []Change
	givenUp map[uint64][]GivenUp // by position
}

// Follow reads the stream until ctx ends. It waits for one that is missing, and restarts after a deletion.
func (h *History) Follow(ctx context.Context, js jetstream.JetStream, namespace string) {
	for ctx.Err() == nil {
		_ = h.followOnce(ctx, js, namespace) // retried after any error
		h.reset(nil)
		_ = wait.Sleep(ctx, streamCheckInterval)
	}
}

func (h *History) followOnce(ctx context.Context, js jetstream.JetStream, namespace string) error {
	jsStream, err := js.Stream(ctx, StreamName(namespace))
	if err != nil {
		return err
	}
	stream := newStateStream(js, namespace)
	stream.onRecord, stream.onGiveUp, stream.created = h.addChange, h.addGiveUp, jsStream.CachedInfo().Created
	h.reset(stream)
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return stream.monitor(gctx) })
	group.Go(func() error {
		return stream.follow(gctx, jetstream.DeliverAllPolicy, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.ready = true
		})
	})
	return group.Wait()
}

func (h *History) reset(stream *stateStream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stream, h.ready, h.changes, h.givenUp = stream, false, nil, make(map[uint64][]GivenUp)
}

// addChange keeps a change. It is called in the order of the stream.
func (h *History) addChange(e *entry) {
	// not a record, or one that only renews a lasting state
	if e.State == "" || e.Repeats != nil || e.Quiet && e.State == e.Previous {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.changes) >= 2*maxHistory {
		h.changes = append([]Change(nil), h.changes[len(h.changes)-maxHistory:]...)
		maps.DeleteFunc(h.givenUp, func(position uint64, _ []GivenUp) bool { return position < h.changes[0].Position })
	}
	h.changes = append(h.changes, Change{ID: e.change().id(), KeyState: e.KeyState, Previous: e.Previous,
		Quiet: e.Quiet, Position: e.seq})
}

// addGiveUp keeps that a change was given up for a target. It may be called twice for the same.
func (h *History) addGiveUp(g giveUpRecord) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.givenUp[g.Position]
	isKnown := slices.ContainsFunc(known, func(o GivenUp) bool { return o.Target == g.Target })
	if len(h.changes) > 0 && g.Position >= h.changes[0].Position && !isKnown {
		h.givenUp[g.Position] = append(known, g.GivenUp)
	}
}

// Report is a snapshot of a History.
type Report struct {
	Ready     bool // the stream was read, or does not exist
	Evaluated time.Time
	Rules     int
	States    []Standing           // the most severe first
	Changes   []Change             // the oldest first, without GivenUp
	GivenUp   map[uint64][]GivenUp // by position
}

// severity lists the states, the most severe first.
var severity = []State{Firing, Unknown, Pending, Resolved, OK}

// Report returns a snapshot. The caller must not modify its changes.
func (h *History) Report() Report {
	h.mu.Lock()
	stream, out := h.stream, Report{Ready: h.ready || h.stream == nil}
	out.Changes, out.GivenUp = h.changes[max(0, len(h.changes)-maxHistory):], maps.Clone(h.givenUp)
	h.mu.Unlock()
	if stream == nil {
		return out
	}
	leader, _, _ := stream.lastHeartbeat()
	out.Evaluated, out.Rules = leader.At, leader.Rules
	for _, e := range stream.copyStates() {
		if e.isLive() {
			out.States = append(out.States, Standing{e.KeyState, e.Since})
		}
	}
	slices.SortFunc(out.States, func(a, b Standing) int {
		return cmp.Or(slices.Index(severity, a.State)-slices.Index(severity, b.State), strings.Compare(a.Rule, b.Rule),
			strings.Compare(a.Key, b.Key))
	})
	return out
}
