package consume

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
)

const (
	// tickEvery is how often silence is looked at.
	tickEvery = 200 * time.Millisecond
	// kvTimeout bounds one request to the bucket: shorter than what makes a worker dead.
	kvTimeout = 2 * time.Second
	// nameWithin is how long a worker waits for its name: a process of that name
	// which was killed is forgotten sooner.
	nameWithin = 15 * time.Second
)

// fleet shares the streams among the workers of a namespace: see "Sharing streams
// among workers" in docs/design.md. Who reads a stream is only a matter of who
// does the work: that every hit counts once rests on the cursors alone.
type fleet struct {
	js       jetstream.JetStream
	id       func() string // of the namespace, see window.Store.ID
	name     string
	bucket   string
	replicas int
	metrics  *metrics
	log      zerolog.Logger
	kick     chan struct{} // a beat is due before its time
	changed  chan struct{} // share may have changed

	// Of run's goroutine alone.
	kv       jetstream.KeyValue
	watcher  jetstream.KeyWatcher
	watched  time.Time // when the watcher was made
	endWatch func()    // frees its context
	prefix   string    // the id that the keys have now
	revision uint64    // of this worker's key; 0 where it is not written
	begun    time.Time // of the wait for the name
	joined   bool      // has ever been
	failing  bool      // said in the log

	mu      sync.Mutex
	self    member
	holds   map[string]bool
	streams []string // that exist, as far as this worker knows; nil before it has looked
	roster  *roster
	alone   bool // no fleet can be joined: this worker reads every stream
	waiting bool // for its name
}

func newFleet(js jetstream.JetStream, id func() string, settings Settings, status string, metrics *metrics, log zerolog.Logger) *fleet {
	return &fleet{
		js: js, id: id, name: settings.Worker, bucket: bucketName(settings.Redis.Namespace), replicas: settings.Replicas,
		metrics: metrics, log: log, kick: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		self: member{
			Incarnation: rand.Text(), Started: time.Now().UTC().Format(time.RFC3339), Status: status, Streams: settings.Streams,
		},
		holds: make(map[string]bool), roster: newRoster(""),
	}
}

// run keeps this worker in the fleet until ctx ends. It fails only where another
// worker has the name and keeps it.
func (f *fleet) run(ctx context.Context) error {
	defer f.unwatch()
	beat, tick := time.NewTicker(beatEvery), time.NewTicker(tickEvery)
	defer beat.Stop()
	defer tick.Stop()
	if err := f.beat(ctx); err != nil {
		return err
	}
	for {
		due := false
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			due = true
		case <-f.kick:
			due = true
		case <-tick.C:
		case entry, ok := <-f.updates():
			if !ok {
				f.unwatch()
			} else if entry != nil { // nil marks the end of what there was
				f.see(entry)
			}
		}
		if due {
			if err := f.beat(ctx); err != nil {
				return err
			}
		}
		f.decide(ctx, due)
		signal(f.changed)
	}
}

// signal leaves one token in a channel.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// updates blocks for ever where nothing is watched.
func (f *fleet) updates() <-chan jetstream.KeyValueEntry {
	if f.watcher == nil {
		return nil
	}
	return f.watcher.Updates()
}

// beat writes this worker's key, making what is missing for it.
func (f *fleet) beat(life context.Context) error {
	ctx, cancel := context.WithTimeout(life, kvTimeout)
	defer cancel()
	if id := f.id(); id != f.prefix {
		f.move(ctx, id)
	}
	err := f.open(ctx, life)
	if err == nil {
		err = f.write(ctx)
	}
	switch {
	case err == nil:
		if f.failing {
			f.log.Info().Msg("the fleet is reached")
		}
		f.begun, f.joined, f.failing = time.Time{}, true, false
		f.settle(false, false)
		return nil
	case errors.Is(err, errNameTaken):
		return f.waitForName(err)
	case ctx.Err() != nil && context.Cause(ctx) == context.Canceled:
		return nil
	}
	// The last one is what a watch says: the library has two errors for the same.
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, nats.ErrStreamNotFound) {
		f.kv = nil // a server that was restarted has forgotten the bucket
		f.unwatch()
	}
	if f.revision = 0; !f.failing {
		what := "the fleet cannot be reached: keeping the streams held"
		if !f.joined {
			what = "no fleet can be joined: reading every stream, which is exact but wastes work where there are other workers; does this user have the right to make the stream KV_" + f.bucket + " and to use $KV." + f.bucket + ".>?"
		}
		f.log.Warn().Err(err).Msg(what)
	}
	f.failing = true
	f.settle(!f.joined, false)
	return nil
}

// settle notes whether there is a fleet.
func (f *fleet) settle(alone, waiting bool) {
	f.mu.Lock()
	f.alone, f.waiting = alone, waiting
	f.mu.Unlock()
}

// errNameTaken says that another process has this worker's name.
var errNameTaken = errors.New("another worker has this name")

// waitForName waits for a while: a worker that was killed and started again meets
// its own key until the server has dropped it.
func (f *fleet) waitForName(taken error) error {
	if f.begun.IsZero() {
		f.begun = time.Now()
		f.log.Warn().Err(taken).Msg("waiting until the other is gone")
	}
	if time.Since(f.begun) > nameWithin {
		return &boot.SettingError{Key: "INGEST_WORKER", Value: f.name, Allowed: fmt.Sprintf("a name that no other worker of the namespace has (%v)", taken)}
	}
	f.settle(false, true)
	return nil
}

// open finds the bucket, or makes it, and watches it for life.
func (f *fleet) open(ctx, life context.Context) (err error) {
	if f.kv == nil {
		f.kv, err = f.js.KeyValue(ctx, f.bucket)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			f.kv, err = f.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
				Bucket: f.bucket, Description: "tallyroll: which worker reads which stream",
				TTL: deadAfter, Storage: jetstream.MemoryStorage, Replicas: f.replicas,
			})
		}
		if errors.Is(err, jetstream.ErrBucketExists) { // another worker was faster
			f.kv, err = f.js.KeyValue(ctx, f.bucket)
		}
		if err != nil {
			f.kv = nil
			return fmt.Errorf("open bucket %s: %w", f.bucket, err)
		}
	}
	if f.watcher == nil {
		// Not under ctx: it lives on. The request is bounded all the same.
		life, cancel := context.WithCancel(life)
		late := time.AfterFunc(kvTimeout, cancel)
		watcher, err := f.kv.Watch(life, f.prefix+".>")
		if !late.Stop() && err == nil {
			_ = watcher.Stop() // its context has ended just as it came
			err = context.DeadlineExceeded
		}
		if err != nil {
			cancel()
			return fmt.Errorf("watch bucket %s: %w", f.bucket, err)
		}
		f.watcher, f.watched, f.endWatch = watcher, time.Now(), cancel
	}
	return nil
}

func (f *fleet) unwatch() {
	if f.watcher == nil {
		return
	}
	go func(w jetstream.KeyWatcher, end func()) { // it asks a server, which may hang
		_ = w.Stop() // its only error is that there is nothing to stop
		end()
	}(f.watcher, f.endWatch)
	go func(rest <-chan jetstream.KeyValueEntry) {
		for range rest { // until it is closed: what is under way must not block the library
		}
	}(f.watcher.Updates())
	f.watcher = nil
	f.mu.Lock()
	f.roster.revision = 0
	f.mu.Unlock()
}

// move begins anew under another id: Redis was emptied, and somebody who did not
// know the id has given the namespace a new one.
func (f *fleet) move(ctx context.Context, id string) {
	if f.revision != 0 {
		_ = f.kv.Delete(ctx, f.key()) // or it expires
	}
	f.unwatch()
	f.prefix, f.revision = id, 0
	f.mu.Lock()
	f.roster = newRoster(keyName(f.name))
	f.mu.Unlock()
}

func (f *fleet) key() string { return memberPrefix(f.prefix) + keyName(f.name) }

// write puts this worker's key, never over another process's.
func (f *fleet) write(ctx context.Context) error {
	f.mu.Lock()
	f.self.Holds = slices.AppendSeq([]string{}, maps.Keys(f.holds))
	slices.Sort(f.self.Holds)
	value, err := json.Marshal(f.self)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	put := func(revision uint64) (err error) {
		if revision == 0 {
			f.revision, err = f.kv.Create(ctx, f.key(), value)
		} else {
			f.revision, err = f.kv.Update(ctx, f.key(), value, revision)
		}
		if err != nil {
			f.revision = 0
			return fmt.Errorf("write %s: %w", f.key(), err)
		}
		f.mu.Lock()
		if f.self.Joined == 0 {
			f.self.Joined = f.revision
		}
		f.mu.Unlock()
		return nil
	}
	if err := put(f.revision); !mismatch(err) {
		return err
	}
	// It has expired, or an acknowledgement was lost, or it is not ours.
	entry, err := f.kv.Get(ctx, f.key())
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		f.mu.Lock()
		f.roster.revision = 0 // the bucket may be a new one
		f.mu.Unlock()
		return put(0)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", f.key(), err)
	}
	other, err := decodeMember(entry.Value())
	if err != nil {
		return err
	}
	if other.Incarnation != f.self.Incarnation {
		return fmt.Errorf("%w: started %s, status at %s, holding %d streams", errNameTaken, other.Started, other.Status, len(other.Holds))
	}
	return put(entry.Revision())
}

// mismatch reports whether a key is not at the revision that a write was for.
func mismatch(err error) bool {
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch)
}

// see takes in a change of the bucket.
func (f *fleet) see(entry jetstream.KeyValueEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	there := entry.Operation() == jetstream.KeyValuePut
	if entry.Key() == planKey(f.prefix) {
		var p plan
		switch {
		case !there:
			f.roster.revision = 0 // what it said holds on
		case json.Unmarshal(entry.Value(), &p) == nil:
			f.roster.follow(p, entry.Revision(), now)
		}
		return
	}
	name := entry.Key()[len(memberPrefix(f.prefix)):]
	if !there {
		f.roster.remove(name)
	} else if m, err := decodeMember(entry.Value()); err == nil {
		f.roster.see(name, entry.Revision(), m, f.self.Incarnation, now)
	}
}

// decide buries the silent and, in the fleet's first worker, writes the plan
// where it has to change, and with each beat, so that it does not expire.
func (f *fleet) decide(ctx context.Context, due bool) {
	now := time.Now()
	f.mu.Lock()
	f.roster.bury(now)
	blind := f.watcher != nil && !f.roster.sees(now) && now.Sub(f.watched) > deadAfter
	var next plan
	revision := f.roster.revision
	if f.streams != nil && f.revision != 0 && f.roster.first(now, func(Globs) bool { return true }) {
		next = f.roster.next(f.streams)
		if !due && f.roster.plan != nil && maps.Equal(next, f.roster.plan) {
			next = nil
		}
	}
	f.mu.Unlock()
	if blind {
		f.unwatch() // the next beat watches anew
	}
	if next != nil {
		f.publish(ctx, next, revision)
	}
}

// publish writes the plan where nobody else has. Whatever goes wrong is tried
// again with the next beat.
func (f *fleet) publish(ctx context.Context, next plan, revision uint64) {
	ctx, cancel := context.WithTimeout(ctx, kvTimeout)
	defer cancel()
	value, err := json.Marshal(next)
	if err != nil {
		return
	}
	if revision == 0 {
		revision, err = f.kv.Create(ctx, planKey(f.prefix), value)
	} else {
		revision, err = f.kv.Update(ctx, planKey(f.prefix), value, revision)
	}
	if mismatch(err) {
		// Somebody else's, which is then gone on from, or it has expired.
		entry, err := f.kv.Get(ctx, planKey(f.prefix))
		f.mu.Lock()
		f.roster.revision = 0
		f.mu.Unlock()
		if err == nil {
			f.see(entry)
		}
		return
	}
	if err != nil {
		f.log.Debug().Err(err).Msg("the plan is not written")
		return
	}
	f.mu.Lock()
	f.roster.follow(next, revision, time.Now())
	f.mu.Unlock()
}

// share is what this worker is to read now.
func (f *fleet) share() share {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.alone:
		s := share{known: f.streams != nil, mine: make(map[string]bool)}
		for _, stream := range f.streams {
			if Globs(f.self.Streams).match(stream) {
				s.mine[stream] = true
			}
		}
		s.streams = len(s.mine)
		return s
	case f.waiting:
		return share{known: true, waiting: true} // whoever has the name has the streams
	}
	return f.roster.share(time.Now())
}

// first reports whether it falls to this worker to do what has to be done once
// for a stream.
func (f *fleet) first(stream string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alone || f.roster.first(time.Now(), func(g Globs) bool { return g.match(stream) })
}

// matters reports whether any worker of the fleet may read a stream.
func (f *fleet) matters(stream string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.roster.members {
		if Globs(m.Streams).match(stream) {
			return true
		}
	}
	return Globs(f.self.Streams).match(stream)
}

// exist says which streams there are.
func (f *fleet) exist(streams []string) {
	f.mu.Lock()
	f.streams = slices.Clone(streams)
	f.mu.Unlock()
	signal(f.changed)
}

func (f *fleet) hold(stream string) {
	f.mu.Lock()
	f.holds[stream] = true
	f.mu.Unlock()
	signal(f.kick)
}

// release tells the next worker that the last commit is done.
func (f *fleet) release(stream string) {
	f.mu.Lock()
	delete(f.holds, stream)
	f.mu.Unlock()
	signal(f.kick)
	signal(f.changed)
}

// leaving has the streams given to others; each is theirs once it is released.
func (f *fleet) leaving() {
	f.mu.Lock()
	f.self.Leaving = true
	f.mu.Unlock()
	signal(f.kick)
}

// leave removes this worker's key, once run has ended: that can have been in the
// middle of a beat, so the key is read again.
func (f *fleet) leave() {
	if !f.joined || f.kv == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveWithin)
	defer cancel()
	entry, err := f.kv.Get(ctx, f.key())
	if err == nil {
		m, bad := decodeMember(entry.Value())
		if bad != nil || m.Incarnation != f.self.Incarnation {
			return // it has expired, and another has the name
		}
		err = f.kv.Delete(ctx, f.key(), jetstream.LastRevision(entry.Revision()))
	}
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		f.log.Warn().Err(err).Msg("this worker's key was left to expire")
	}
}
