package fleet

import (
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/wake"
)

type Config struct {
	JS          jetstream.JetStream
	Namespace   string        // whose streams are shared
	ID          func() string // of the namespace; it can change after Redis was emptied, see schema.Store.ID
	Name        string        // of this worker, human-readable
	Status      string        // host:port of its /readyz and /metrics, for operators
	Streams     Globs         // which streams it may read
	Replicas    int           // of the bucket
	LastCommit  time.Duration // bounds the last commit of a stream
	LeaveWithin time.Duration // bounds the removal of this worker's key
	Log         zerolog.Logger
}

// Fleet is one worker's membership. Its methods are safe for concurrent use.
type Fleet struct {
	id           func() string
	leaveWithin  time.Duration
	lastCommit   time.Duration
	log          zerolog.Logger
	token        string      // of this process
	heartbeatDue wake.Signal // a heartbeat is due before the next tick
	changed      wake.Signal // Share may have changed

	// Only Run's goroutine uses these.
	bucket         bucket
	reached        bool // the last heartbeat was written
	joined         bool // a heartbeat has been written
	failureLogged  bool // the log has reported the failure
	echoLossLogged bool // the log has reported that the watch delivers nothing

	mu      sync.Mutex // guards the fields below
	self    member
	holds   map[string]bool
	streams []string // that exist; nil before the first check
	roster  *roster
	alone   bool // no fleet can be joined: this worker reads every stream
}

// New returns a Fleet that joins in Run.
func New(c Config) *Fleet {
	token := rand.Text()
	return &Fleet{
		id: c.ID, leaveWithin: c.LeaveWithin, lastCommit: c.LastCommit, log: c.Log, token: token,
		heartbeatDue: wake.New(), changed: wake.New(),
		bucket: bucket{js: c.JS, name: bucketName(c.Namespace), replicas: c.Replicas},
		self: member{
			Name: c.Name, Started: time.Now().UTC().Format(time.RFC3339), Status: c.Status, Streams: c.Streams,
		},
		holds: make(map[string]bool), roster: newRoster(token, c.LastCommit),
	}
}

// Changed signals that Share may have changed. One goroutine may wait for it.
func (f *Fleet) Changed() <-chan struct{} { return f.changed }

// Share returns what this worker should read now.
func (f *Fleet) Share() Share {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.alone {
		return f.roster.share(time.Now())
	}
	s := Share{Known: f.streams != nil, Mine: make(map[string]bool)}
	for _, stream := range f.streams {
		if Globs(f.self.Streams).Match(stream) {
			s.Mine[stream] = true
		}
	}
	s.Streams = len(s.Mine)
	return s
}

// SetReadable sets the streams that this worker may read.
func (f *Fleet) SetReadable(streams Globs) {
	f.mu.Lock()
	same := slices.Equal(f.self.Streams, streams)
	f.self.Streams = slices.Clone(streams)
	f.mu.Unlock()
	if !same {
		f.heartbeatDue.Give()
		f.changed.Give()
	}
}

// SetStreams sets the streams that exist.
func (f *Fleet) SetStreams(streams []string) {
	f.mu.Lock()
	f.streams = slices.Clone(streams)
	f.mu.Unlock()
	f.changed.Give()
}

// Hold publishes that this worker reads a stream.
func (f *Fleet) Hold(stream string) {
	f.mu.Lock()
	f.holds[stream] = true
	f.mu.Unlock()
	f.heartbeatDue.Give()
}

// Release publishes that the last commit of a stream is done, so the next worker may acquire it.
func (f *Fleet) Release(stream string) {
	f.mu.Lock()
	delete(f.holds, stream)
	f.mu.Unlock()
	f.heartbeatDue.Give()
	f.changed.Give()
}

// StartLeaving makes the fleet assign this worker's streams to others, which may acquire each once it is
// released.
func (f *Fleet) StartLeaving() {
	f.mu.Lock()
	f.self.Leaving = true
	f.mu.Unlock()
	f.heartbeatDue.Give()
}

// IsLeader reports whether this worker leads a stream: it does what one worker must do for it.
func (f *Fleet) IsLeader(stream string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alone || f.roster.isLeader(time.Now(), func(g Globs) bool { return g.Match(stream) })
}

// AnyMayRead reports whether any worker of the fleet may read a stream.
func (f *Fleet) AnyMayRead(stream string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.roster.members {
		if Globs(m.Streams).Match(stream) {
			return true
		}
	}
	return Globs(f.self.Streams).Match(stream)
}
