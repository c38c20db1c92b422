package watch

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/watch/history"
)

// cache is this process's copy of the stream: states, the last heartbeat, each target's progress. It may be
// outdated, so each publish names the sequence that it expects. It is safe for concurrent use.
type cache struct {
	namespace string

	mu               sync.Mutex
	states           map[string]*entry // by subject; entries are replaced, never changed
	heartbeatSeq     uint64
	heartbeat        heartbeat
	heartbeatReadAt  time.Time         // of the last process that reached Redis, by this machine's clock
	leases           map[string]*lease // by target; leases are replaced, never changed
	newestSeq        uint64            // the highest applied sequence
	rolledBack       bool              // the stream lacks an applied message
	serverTime       time.Time         // when the server stored the last message that was read
	serverTimeReadAt time.Time         // and when it was read, by this machine's clock
	sweptAt          time.Time         // when idle keys were last removed, by the server's clock
	unpublished      map[string]*entry // see setUnpublished
	maxAge           time.Duration     // after which the stream expires a message; 0: never
	maxPerSubject    int               // messages of one subject that the stream keeps; less than 1: all
}

// now returns the server's clock: the time of its last message plus the time since; zero before the first
// message. Ages of messages are compared with it alone, because this machine's clock may be wrong by days.
func (c *cache) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

func (c *cache) nowLocked() time.Time {
	if c.serverTime.IsZero() {
		return c.serverTime
	}
	return c.serverTime.Add(time.Since(c.serverTimeReadAt))
}

func (c *cache) setNow(stored time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serverTime, c.serverTimeReadAt = stored, time.Now()
}

// apply applies a message unless a later one of its subject was applied. stored is the server's time; zero if
// this process has just published the message and will read it.
func (c *cache) apply(subject string, data []byte, seq uint64, stored time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyLocked(subject, data, seq, stored)
}

func (c *cache) applyLocked(subject string, data []byte, seq uint64, stored time.Time) {
	c.newestSeq = max(c.newestSeq, seq)
	kind, target := c.splitSubject(subject)
	switch kind {
	case history.HeartbeatKind:
		var h heartbeat
		if seq > c.heartbeatSeq && json.Unmarshal(data, &h) == nil {
			c.heartbeatSeq, c.heartbeat, c.unpublished = seq, h, nil
			if !h.NoRedis {
				c.heartbeatReadAt = time.Now()
			}
		}
		c.removeIdleKeys(stored)
	case "delivery":
		if known := c.leases[target]; known == nil || known.seq < seq {
			read := &lease{seq: seq, readAt: time.Now()}
			_ = json.Unmarshal(data, &read.progress) // a foreign message leaves it empty
			read.progress.clamp(seq)
			c.leases[target] = read
		}
	case "state":
		known := c.states[subject]
		if known != nil && (known.seq > seq || known.seq == seq && stored.IsZero()) {
			return
		}
		e := &entry{Record{}, seq, stored}
		if stored.IsZero() {
			e.stored = c.nowLocked()
		}
		if json.Unmarshal(data, &e.Record) != nil {
			e.Record = Record{} // a foreign message: the next evaluation overwrites it
		}
		c.states[subject] = e
	}
}

// removeIdleKeys removes keys idle for history.IdleRetention. A publish to one is refused, and it is reread.
func (c *cache) removeIdleKeys(now time.Time) {
	if now.Sub(c.sweptAt) < history.SweepInterval {
		return
	}
	c.sweptAt = now
	maps.DeleteFunc(c.states, func(_ string, e *entry) bool {
		return e.State.IsIdle() && (e.Gone || e.Many) && now.Sub(e.stored) > history.IdleRetention
	})
}

func (c *cache) copyStates() map[string]*entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.states)
}

// setUnpublished keeps changes that NATS did not store, until the next heartbeat. Only Alertmanager gets
// them, because it must be notified at once and tolerates repetition.
func (c *cache) setUnpublished(drafts []draft) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unpublished = make(map[string]*entry, len(drafts))
	for _, d := range drafts {
		c.unpublished[d.subject] = &entry{d.Record, d.expectedSeq, c.nowLocked()}
	}
}

// expectedStates returns the states, with the unpublished changes applied.
func (c *cache) expectedStates() map[string]*entry {
	out := c.copyStates()
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(out, c.unpublished)
	return out
}

// lastHeartbeat returns the last heartbeat, its sequence, and when the last one with Redis was read.
func (c *cache) lastHeartbeat() (h heartbeat, seq uint64, readAt time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heartbeat, c.heartbeatSeq, c.heartbeatReadAt
}

func (c *cache) readLease(target string) lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.leases[target]; known != nil {
		return *known
	}
	return lease{}
}

func (c *cache) listTargets() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.leases))
}

// splitSubject splits a subject into its kind, and the target, or rule and key.
func (c *cache) splitSubject(subject string) (kind, rest string) {
	kind, rest, _ = strings.Cut(strings.TrimPrefix(subject, history.Subject(c.namespace, "")), ".")
	return kind, rest
}

// check returns the highest applied sequence, and whether the stream lacks an applied message.
func (c *cache) check() (newestSeq uint64, rolledBack bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newestSeq, c.rolledBack
}

// applyPublished applies a message that this process has published. If its sequence is not above
// newestBefore, the newest one when it was sent, the stream is an older copy.
func (c *cache) applyPublished(subject string, data []byte, seq, newestBefore uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyLocked(subject, data, seq, time.Time{})
	c.rolledBack = c.rolledBack || seq <= newestBefore
}

// applyReread applies a subject's last message. If a later one was applied, the stream is an older copy. Both
// are one step, because a heartbeat that is applied in between may remove an idle state.
func (c *cache) applyReread(subject string, data []byte, seq uint64, stored time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyLocked(subject, data, seq, stored)
	known := c.heartbeatSeq
	switch kind, target := c.splitSubject(subject); {
	case kind == "delivery":
		known = c.leases[target].seq
	case kind == "state":
		known = c.states[subject].seq
	}
	c.rolledBack = c.rolledBack || known > seq
}

// removeSubject removes a subject that the stream lacks: an operator or a limit has removed its messages. It
// keeps a target's progress.
func (c *cache) removeSubject(subject string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind, target := c.splitSubject(subject)
	c.removeState(subject)
	switch known := c.leases[target]; {
	case kind == history.HeartbeatKind:
		c.heartbeatSeq = 0
	case kind == "delivery" && known != nil:
		c.leases[target] = &lease{progress: known.progress, readAt: known.readAt}
	}
}

// removeState removes a state, or keeps it without a sequence if it is live, so that it is stored again. The
// caller holds mu.
func (c *cache) removeState(subject string) {
	if e := c.states[subject]; e != nil && e.isLive() {
		c.states[subject] = &entry{e.Record, 0, e.stored}
		return
	}
	delete(c.states, subject)
}

// setStreamInfo applies the stream's settings, which an operator may edit, and removes states that the stream
// no longer has: a purge, or a limit, raises its first sequence.
func (c *cache) setStreamInfo(info *jetstream.StreamInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maxAge, c.maxPerSubject = info.Config.MaxAge, int(info.Config.MaxMsgsPerSubject)
	for subject, e := range c.states {
		if e.seq < info.State.FirstSeq {
			c.removeState(subject)
		}
	}
}

// limits returns the stream's settings as they were last read.
func (c *cache) limits() (maxAge time.Duration, maxPerSubject int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.maxAge, c.maxPerSubject
}

// renew returns the record that stores a live state again. It notifies only targets that were not notified.
// Those of a record that the stream lacks are unknown, so it notifies none.
func (c *cache) renew(e *entry) Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := e.Record
	out.Previous, out.Repeats = e.State, nil
	if !e.Quiet {
		var missing []string
		for _, target := range e.To {
			if l := c.leases[target]; l != nil && !l.Gone && !l.includes(e.seq) {
				missing = append(missing, target)
			}
		}
		if len(missing) > 0 {
			change := e.change()
			out.To, out.Repeats = missing, &change
		}
	}
	out.Quiet = out.Repeats == nil
	return out
}
