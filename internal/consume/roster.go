package consume

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// beatEvery is how often a worker writes its key.
	beatEvery = time.Second
	// deadAfter is how long a worker may be silent. It is also how long the server
	// keeps a key, so that what an operator sees in the bucket is the fleet.
	deadAfter = 3 * time.Second
	// blindAfter is how long this worker may miss its own beats before it trusts nothing that it knows of the others.
	blindAfter = 2 * time.Second
	// handOverWithin is how long a worker waits for another to let a stream go: longer
	// than the last commit may take. After that the cursor decides between them.
	handOverWithin = shutdownCommit + 3*time.Second
)

// member is the value of a worker's key: what the others have to know, and an
// operator wants to. No moment in it is compared with another machine's clock.
type member struct {
	Incarnation string   `json:"incarnation"` // of the process: a name can come back
	Joined      uint64   `json:"joined"`      // revision of the key's first write; 0 in that write
	Started     string   `json:"started"`     // RFC 3339, by its own clock
	Status      string   `json:"status"`      // host:port of /readyz and /metrics
	Streams     []string `json:"streams"`     // globs of what it may read
	Holds       []string `json:"holds"`       // streams that it reads now
	Leaving     bool     `json:"leaving,omitempty"`
}

// plan is the value of the key by which the fleet's first worker tells all which
// stream is whose: keyName of the worker by stream.
type plan map[string]string

// The keys of a namespace, in a bucket of the namespace's name. The namespace's id
// (window.Store.ID) comes first: a namespace of the same name in another Redis is another fleet.
//
//	<id>.worker.<name>   member; the name as keyName writes it
//	<id>.plan            plan
const bucketPrefix = "tallyroll_"

// bucketName keeps different namespaces different: a bucket's name has no dots.
func bucketName(namespace string) string {
	return bucketPrefix + strings.NewReplacer("_", "__", ".", "_-").Replace(namespace)
}

func planKey(id string) string { return id + ".plan" }

func memberPrefix(id string) string { return id + ".worker." }

// keyName takes any name: what a key must not have is written =XX.
func keyName(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c == '-' || c == '_' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}

// roster is what a worker knows of its fleet. It has no clock and no I/O: moments
// are passed in, of this process's monotonic clock alone.
type roster struct {
	self     string                // this worker's keyName
	own      time.Time             // of the last beat of its own that came back; zero before
	members  map[string]memberSeen // by keyName
	plan     plan                  // nil before one is known
	revision uint64                // of the plan; 0 where there is none in the bucket
	mine     map[string]time.Time  // since when a stream has been this worker's
}

type memberSeen struct {
	member
	at time.Time // of its last beat
}

func newRoster(self string) *roster {
	return &roster{self: self, members: make(map[string]memberSeen), mine: make(map[string]time.Time)}
}

// see takes in a worker's beat. Whoever has been blind has missed the others'
// beats, too: they get their time anew.
func (r *roster) see(name string, revision uint64, m member, incarnation string, now time.Time) {
	if m.Joined == 0 {
		m.Joined = revision
	}
	r.members[name] = memberSeen{m, now}
	if name != r.self || m.Incarnation != incarnation {
		return
	}
	if !r.sees(now) {
		for other, m := range r.members {
			m.at = now
			r.members[other] = m
		}
	}
	r.own = now
}

func (r *roster) remove(name string) { delete(r.members, name) }

// sees reports whether this worker's own beats come back to it. Otherwise it
// keeps what it holds and decides nothing.
func (r *roster) sees(now time.Time) bool {
	return !r.own.IsZero() && now.Sub(r.own) < blindAfter
}

// bury forgets members that have been silent for too long.
func (r *roster) bury(now time.Time) {
	if !r.sees(now) {
		return
	}
	maps.DeleteFunc(r.members, func(_ string, m memberSeen) bool { return now.Sub(m.at) >= deadAfter })
}

// first reports whether this worker has been in the fleet for longest, of those
// that match: it does what one has to do for all.
func (r *roster) first(now time.Time, match func(Globs) bool) bool {
	self, ok := r.members[r.self]
	if !ok || !r.sees(now) || self.Leaving {
		return false
	}
	for name, m := range r.members {
		earlier := m.Joined < self.Joined || m.Joined == self.Joined && name < r.self // a bucket made anew counts from 1 again
		if earlier && !m.Leaving && match(Globs(m.Streams)) {
			return false
		}
	}
	return match(Globs(self.Streams))
}

// next is the plan as it should be. Where none is known it begins with what the workers hold.
func (r *roster) next(streams []string) plan {
	before, workers := maps.Clone(r.plan), make(map[string]Globs)
	if before == nil {
		before = make(plan)
	}
	for name, m := range r.members {
		if !m.Leaving {
			workers[name] = m.Streams
		}
		if r.plan == nil {
			for _, stream := range m.Holds {
				before[stream] = name
			}
		}
	}
	return assign(before, workers, streams)
}

// follow takes in a plan; an older one than is known comes late and is none.
func (r *roster) follow(p plan, revision uint64, now time.Time) {
	if revision < r.revision {
		return
	}
	r.plan, r.revision = p, revision
	for stream, owner := range p {
		if _, ok := r.mine[stream]; !ok && owner == r.self {
			r.mine[stream] = now
		}
	}
	maps.DeleteFunc(r.mine, func(stream string, _ time.Time) bool { return p[stream] != r.self })
}

// share is what a worker is to read.
type share struct {
	known   bool // a plan is known, or there is no fleet
	waiting bool // another process has this worker's name
	workers int  // in the fleet; 0 without one
	streams int  // of all workers
	mine    map[string]bool
	busy    map[string]bool // of mine, those that another worker has not let go of yet
}

func (r *roster) share(now time.Time) share {
	s := share{known: r.plan != nil, streams: len(r.plan), mine: make(map[string]bool), busy: make(map[string]bool)}
	for stream, since := range r.mine {
		s.mine[stream] = true
		for name, m := range r.members {
			if name != r.self && slices.Contains(m.Holds, stream) && now.Sub(since) < handOverWithin {
				s.busy[stream] = true
			}
		}
	}
	for _, m := range r.members {
		if !m.Leaving {
			s.workers++
		}
	}
	return s
}

func decodeMember(value []byte) (m member, err error) {
	if err = json.Unmarshal(value, &m); err != nil {
		err = fmt.Errorf("a worker's key: %w", err)
	}
	return m, err
}
