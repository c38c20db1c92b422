// Package history reads the states of rules, and how they have changed, from the stream in which package
// watch stores them. It has the forms of that stream, too, so that a reader needs no part of an
// evaluation. A History follows the stream in one goroutine, and monitors it in another.
package history

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/platform/wait"
)

// History holds a namespace's states and newest changes. The zero value is empty. Safe for concurrent use.
type History struct {
	mu        sync.Mutex
	following bool // there is a stream
	ready     bool // it was read to its end
	newest    uint64
	heartbeat heartbeat
	sweptAt   time.Time         // when idle keys were last removed, by the server's clock
	states    map[string]record // of live keys, by subject
	changes   []Change
	givenUp   map[uint64][]GivenUp // by position
}

// heartbeat is what a History reads of the leader's heartbeat.
type heartbeat struct {
	At    time.Time `json:"at"`
	Rules int       `json:"rules"`
}

// record is what a History reads of a record.
type record struct {
	KeyState
	Since    time.Time `json:"since"`
	Previous State     `json:"previous"`
	Quiet    bool      `json:"quiet"`
	Many     bool      `json:"many"`
	Gone     bool      `json:"gone"`
	Repeats  *Origin   `json:"repeats"`
	stored   time.Time
}

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

// Follow reads the stream until ctx ends. It waits for one that is missing, and restarts after a deletion.
func (h *History) Follow(ctx context.Context, js jetstream.JetStream, namespace string) {
	for ctx.Err() == nil {
		_ = h.followOnce(ctx, js, namespace) // retried after any error
		h.reset(false)
		_ = wait.Sleep(ctx, CheckInterval)
	}
}

func (h *History) followOnce(ctx context.Context, js jetstream.JetStream, namespace string) error {
	stream, err := js.Stream(ctx, StreamName(namespace))
	if err != nil {
		return err
	}
	h.reset(true)
	group, gctx := errgroup.WithContext(ctx)
	consumer, err := js.OrderedConsumer(gctx, StreamName(namespace), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{Subject(namespace, ">")}, InactiveThreshold: ConsumerTimeout,
	})
	if err != nil {
		return err
	}
	waiting := consumer.CachedInfo().NumPending
	h.setReady(waiting == 0)
	group.Go(func() error { return h.monitor(gctx, js, stream.CachedInfo()) })
	group.Go(func() error {
		return Read(gctx, consumer, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
			kind, _, _ := strings.Cut(strings.TrimPrefix(m.Subject(), Subject(namespace, "")), ".")
			h.apply(kind, m, meta)
			waiting = max(waiting, 1) - 1
			h.setReady(waiting == 0 || meta.NumPending == 0)
		})
	})
	return group.Wait()
}

func (h *History) setReady(caughtUp bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready = h.ready || caughtUp
}

// monitor returns when the stream is gone, replaced or an older copy of itself.
func (h *History) monitor(ctx context.Context, js jetstream.JetStream, began *jetstream.StreamInfo) error {
	for wait.Sleep(ctx, CheckInterval) == nil {
		h.mu.Lock()
		newest := h.newest
		h.mu.Unlock()
		bounded, cancel := context.WithTimeout(ctx, CheckInterval)
		stream, err := js.Stream(bounded, began.Config.Name)
		cancel()
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return err
		case err != nil:
		case !stream.CachedInfo().Created.Equal(began.Created), stream.CachedInfo().State.LastSeq < newest:
			return fmt.Errorf("stream %s was replaced", began.Config.Name)
		}
	}
	return nil
}

func (h *History) reset(following bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.following, h.ready, h.newest, h.heartbeat, h.changes = following, false, 0, heartbeat{}, nil
	h.states, h.givenUp = make(map[string]record), make(map[uint64][]GivenUp)
}

// apply keeps what a message has. Messages come in the order of the stream; foreign ones are skipped.
func (h *History) apply(kind string, m jetstream.Msg, meta *jetstream.MsgMetadata) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.newest = meta.Sequence.Stream
	switch kind {
	case HeartbeatKind:
		_ = json.Unmarshal(m.Data(), &h.heartbeat)
		h.removeIdleKeys(meta.Timestamp)
	case "state":
		r := record{stored: meta.Timestamp}
		if json.Unmarshal(m.Data(), &r) != nil || r.State == "" || r.Gone {
			delete(h.states, m.Subject())
		} else {
			h.states[m.Subject()] = r
		}
		h.addChange(r, meta.Sequence.Stream)
	case "given_up":
		var g GiveUp
		if json.Unmarshal(m.Data(), &g) == nil {
			h.addGiveUp(g)
		}
	}
}

const (
	// IdleRetention is how long the state of a key that has come and gone is kept.
	IdleRetention = time.Hour
	// SweepInterval is the time between removals of such states.
	SweepInterval = time.Minute
)

func (h *History) removeIdleKeys(now time.Time) {
	if now.Sub(h.sweptAt) < SweepInterval {
		return
	}
	h.sweptAt = now
	maps.DeleteFunc(h.states, func(_ string, r record) bool {
		return r.Many && r.State.IsIdle() && now.Sub(r.stored) > IdleRetention
	})
}

// addChange keeps a change, unless the record only renews a lasting state.
func (h *History) addChange(r record, position uint64) {
	if r.State == "" || r.Repeats != nil || r.Quiet && r.State == r.Previous {
		return
	}
	if len(h.changes) >= 2*maxHistory {
		h.changes = append([]Change(nil), h.changes[len(h.changes)-maxHistory:]...)
		maps.DeleteFunc(h.givenUp, func(position uint64, _ []GivenUp) bool { return position < h.changes[0].Position })
	}
	h.changes = append(h.changes, Change{ID: Origin{position, r.stored}.ID(), KeyState: r.KeyState,
		Previous: r.Previous, Quiet: r.Quiet, Position: position})
}

// addGiveUp keeps that a change was given up for a target. It may be stored twice for the same.
func (h *History) addGiveUp(g GiveUp) {
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
	out := Report{Ready: h.ready || !h.following, Evaluated: h.heartbeat.At, Rules: h.heartbeat.Rules,
		Changes: h.changes[max(0, len(h.changes)-maxHistory):], GivenUp: maps.Clone(h.givenUp)}
	for _, r := range h.states {
		out.States = append(out.States, Standing{r.KeyState, r.Since})
	}
	h.mu.Unlock()
	slices.SortFunc(out.States, func(a, b Standing) int {
		return cmp.Or(slices.Index(severity, a.State)-slices.Index(severity, b.State), strings.Compare(a.Rule, b.Rule),
			strings.Compare(a.Key, b.Key))
	})
	return out
}
