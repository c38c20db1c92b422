package fleet

import (
	"maps"
	"slices"
	"time"
)

const (
	// heartbeatEvery is the heartbeat interval.
	heartbeatEvery = time.Second
	// deadAfter is the silence after which a worker counts as dead. The server keeps its key for as long, so
	// the bucket shows operators the current fleet.
	deadAfter = 3 * time.Second
	// echoWithin is how long the watch may deliver none of this worker's own heartbeats before it distrusts
	// the others' state.
	echoWithin = 2 * time.Second
	// handOverSlack is how long a worker waits for another to release a stream, on top of the time of the
	// last commit. After that, the cursor decides between them.
	handOverSlack = 3 * time.Second
)

// member is the value of a worker's key. Its times are never compared with another machine's clock.
type member struct {
	Name    string   `json:"name"`    // human-readable
	Joined  uint64   `json:"joined"`  // revision of the key's first write; 0 in that write
	Started string   `json:"started"` // RFC 3339, by its own clock
	Status  string   `json:"status"`  // host:port of /readyz and /metrics
	Streams []string `json:"streams"` // globs of what it may read
	Holds   []string `json:"holds"`   // streams that it reads now
	Leaving bool     `json:"leaving,omitempty"`
}

// plan assigns streams to workers: tokens by stream. The fleet's leader writes it.
type plan map[string]string

// roster is a worker's view of its fleet, without clock or I/O: callers pass this process's monotonic time.
type roster struct {
	self            string                // this worker's token
	handOverTimeout time.Duration         // how long this worker waits for another to release a stream
	lastEcho        time.Time             // when the watch delivered its own last heartbeat; zero before the first
	members         map[string]liveMember // by token
	plan            plan                  // nil before one is known
	revision        uint64                // of the plan; 0 if the bucket has none
	lastWrite       uint64                // revision of this worker's last write
	ownSince        map[string]time.Time  // since when each stream has been assigned to this worker
}

type liveMember struct {
	member
	heartbeatAt time.Time // of its last heartbeat
}

// newRoster returns an empty roster. lastCommit bounds the last commit of a stream.
func newRoster(self string, lastCommit time.Duration) *roster {
	return &roster{self: self, handOverTimeout: lastCommit + handOverSlack, members: make(map[string]liveMember),
		ownSince: make(map[string]time.Time)}
}

// recordHeartbeat records a heartbeat. After a time without deliveries, which also missed the others'
// heartbeats, all get their full time again.
func (r *roster) recordHeartbeat(token string, revision uint64, m member, now time.Time) {
	if m.Joined == 0 {
		m.Joined = revision
	}
	r.members[token] = liveMember{m, now}
	if token != r.self {
		return
	}
	if !r.hasEcho(now) {
		for other, m := range r.members {
			m.heartbeatAt = now
			r.members[other] = m
		}
	}
	r.lastEcho = now
}

// recordWrite records the revision of this worker's own write. If it is lower than the previous one, the
// bucket is new, and a plan in it is not older despite its lower revision.
func (r *roster) recordWrite(revision uint64) {
	if revision < r.lastWrite {
		r.revision = 0
	}
	r.lastWrite = revision
}

// hasEcho reports whether the watch delivers this worker's heartbeats. If not, it keeps its streams and
// decides nothing.
func (r *roster) hasEcho(now time.Time) bool {
	return !r.lastEcho.IsZero() && now.Sub(r.lastEcho) < echoWithin
}

// removeDead removes members without a heartbeat for deadAfter.
func (r *roster) removeDead(now time.Time) {
	if !r.hasEcho(now) {
		return
	}
	maps.DeleteFunc(r.members, func(_ string, m liveMember) bool { return now.Sub(m.heartbeatAt) >= deadAfter })
}

// isLeader reports whether this worker leads: it is the oldest that matches.
func (r *roster) isLeader(now time.Time, match func(Globs) bool) bool {
	self, ok := r.members[r.self]
	if !ok || !r.hasEcho(now) || self.Leaving {
		return false
	}
	for token, m := range r.members {
		earlier := m.Joined < self.Joined || m.Joined == self.Joined &&
			token < r.self // in a recreated bucket, revisions begin at 1 again
		if earlier && !m.Leaving && match(Globs(m.Streams)) {
			return false
		}
	}
	return match(Globs(self.Streams))
}

// nextPlan returns the plan that should be in force. Without a plan, it starts from what the workers hold.
func (r *roster) nextPlan(streams []string) plan {
	previous, workers := maps.Clone(r.plan), make(map[string]Globs)
	if previous == nil {
		previous = make(plan)
	}
	for token, m := range r.members {
		if !m.Leaving {
			workers[token] = m.Streams
		}
		if r.plan == nil {
			for _, stream := range m.Holds {
				previous[stream] = token
			}
		}
	}
	return assign(previous, workers, streams)
}

// adopt adopts a plan, unless it is older than the current one.
func (r *roster) adopt(p plan, revision uint64, now time.Time) {
	if revision < r.revision {
		return
	}
	r.plan, r.revision = p, revision
	for stream, owner := range p {
		if _, ok := r.ownSince[stream]; !ok && owner == r.self {
			r.ownSince[stream] = now
		}
	}
	maps.DeleteFunc(r.ownSince, func(stream string, _ time.Time) bool { return p[stream] != r.self })
}

// Share is what a worker should read.
type Share struct {
	Known   bool // a plan is known, or there is no fleet
	Workers int  // in the fleet; 0 without one
	Streams int  // of all workers
	Mine    map[string]bool
	Busy    map[string]bool // of Mine, those that another worker has not released yet
}

// share returns what this worker should read.
func (r *roster) share(now time.Time) Share {
	s := Share{Known: r.plan != nil, Streams: len(r.plan), Mine: make(map[string]bool), Busy: make(map[string]bool)}
	for stream, since := range r.ownSince {
		s.Mine[stream] = true
		for token, m := range r.members {
			if token != r.self && slices.Contains(m.Holds, stream) && now.Sub(since) < r.handOverTimeout {
				s.Busy[stream] = true
			}
		}
	}
	for _, m := range r.members {
		if !m.Leaving {
			s.Workers++
		}
	}
	return s
}
