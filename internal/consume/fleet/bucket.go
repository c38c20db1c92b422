package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
)

// bucket is the fleet's bucket in NATS, and the watch over the keys of one id. It belongs to Run's goroutine.
type bucket struct {
	js       jetstream.JetStream
	name     string
	replicas int
	id       string // of the keys; empty before the first heartbeat

	kv           jetstream.KeyValue   // nil if it must be opened (again)
	watcher      jetstream.KeyWatcher // nil without a watch
	watchedSince time.Time            // when the watch began
	cancelWatch  context.CancelFunc   // frees its context
}

// kvTimeout bounds one request to the bucket. It is shorter than deadAfter.
const kvTimeout = 2 * time.Second

// bucketName is unique per namespace, although a bucket's name can have no dots.
func bucketName(namespace string) string {
	return bucketPrefix + hit.NamespaceToken(namespace)
}

// The keys begin with the namespace's id (schema.Store.ID), because a namespace of the same name in another
// Redis has another fleet.
//
//	<id>.worker.<token>   member
//	<id>.plan             plan

func planKey(id string) string { return id + ".plan" }

func memberPrefix(id string) string { return id + ".worker." }

// open finds or creates the bucket, and watches it until runCtx ends.
func (b *bucket) open(ctx, runCtx context.Context) error {
	if b.kv == nil {
		kv, err := b.openOrCreate(ctx)
		if err != nil {
			return fmt.Errorf("open bucket %s: %w", b.name, err)
		}
		b.kv = kv
	}
	if b.watcher == nil {
		if err := b.startWatch(runCtx); err != nil {
			return fmt.Errorf("watch bucket %s: %w", b.name, err)
		}
	}
	return nil
}

func (b *bucket) openOrCreate(ctx context.Context) (jetstream.KeyValue, error) {
	kv, err := b.js.KeyValue(ctx, b.name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = b.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: b.name, Description: "tallyroll: which worker reads which stream",
			TTL: deadAfter, Storage: jetstream.MemoryStorage, Replicas: b.replicas,
		})
	}
	if errors.Is(err, jetstream.ErrBucketExists) { // another worker has created it
		kv, err = b.js.KeyValue(ctx, b.name)
	}
	return kv, err
}

// startWatch starts a watch until runCtx ends. kvTimeout bounds only the request for it.
func (b *bucket) startWatch(runCtx context.Context) error {
	runCtx, cancel := context.WithCancel(runCtx)
	late := time.AfterFunc(kvTimeout, cancel)
	watcher, err := b.kv.Watch(runCtx, b.id+".>")
	if !late.Stop() && err == nil {
		_ = watcher.Stop() // the time limit ended in that instant
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		return err
	}
	b.watcher, b.watchedSince, b.cancelWatch = watcher, time.Now(), cancel
	return nil
}

// inboxPrefix returns the first part of the subjects to which the watch is delivered.
func (b *bucket) inboxPrefix() string {
	return cmp.Or(b.js.Conn().Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, "."))
}

// updates returns the channel of the watch; nil, which blocks for ever, without one.
func (b *bucket) updates() <-chan jetstream.KeyValueEntry {
	if b.watcher == nil {
		return nil
	}
	return b.watcher.Updates()
}

// stopWatch ends the watch; the next open starts another one.
func (b *bucket) stopWatch() {
	if b.watcher == nil {
		return
	}
	go func(w jetstream.KeyWatcher, end context.CancelFunc) { // the request may hang
		_ = w.Stop() // its only error is that the watch has ended
		end()
	}(b.watcher, b.cancelWatch)
	go func(rest <-chan jetstream.KeyValueEntry) {
		for range rest { // until it is closed: updates under way must not block the library
		}
	}(b.watcher.Updates())
	b.watcher = nil
}

// writeMember writes a worker's key, which only that worker writes.
func (b *bucket) writeMember(ctx context.Context, token string, m member) (revision uint64, err error) {
	key := memberPrefix(b.id) + token
	value, err := json.Marshal(m)
	if err == nil {
		revision, err = b.kv.Put(ctx, key, value)
	}
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", key, err)
	}
	return revision, nil
}

// removeMember deletes the key, after earlier writes of it, because all use one connection. Reading it first
// would be wrong: the reply can overtake a write, and the key would stay until it expires.
func (b *bucket) removeMember(ctx context.Context, token string) error {
	return b.kv.Delete(ctx, memberPrefix(b.id)+token)
}

// writePlan writes the plan if the current one has the revision previous, or, for 0, if the bucket has no
// plan.
func (b *bucket) writePlan(ctx context.Context, p plan, previous uint64) (revision uint64, err error) {
	value, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	if previous == 0 {
		return b.kv.Create(ctx, planKey(b.id), value)
	}
	return b.kv.Update(ctx, planKey(b.id), value, previous)
}

// isMismatch reports whether a write failed because the bucket has another revision than expected.
func isMismatch(err error) bool {
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch)
}

// isGone reports whether an error means that the bucket is missing.
func isGone(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound) ||
		errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, nats.ErrStreamNotFound) // from a watch: the library has two errors for this
}

// Worker is what a worker publishes about itself.
type Worker struct {
	Name    string
	Started time.Time // by its own clock
	Status  string    // host:port of its /readyz and /metrics
	Holds   []string  // the streams that it reads now
	Leaving bool
}

// Workers returns the live workers of the namespace with this id, sorted by name; empty without a fleet.
func Workers(ctx context.Context, js jetstream.JetStream, namespace, id string) ([]Worker, error) {
	name := bucketName(namespace)
	kv, err := js.KeyValue(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", name, err)
	}
	watcher, err := kv.Watch(ctx, memberPrefix(id)+"*", jetstream.IgnoreDeletes())
	if err != nil {
		return nil, fmt.Errorf("read bucket %s: %w", name, err)
	}
	defer func() { _ = watcher.Stop() }() // its only error is that the watch has ended
	var out []Worker
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("read bucket %s: %w", name, ctx.Err())
		case entry, open := <-watcher.Updates():
			if !open || entry == nil { // the end of the keys
				slices.SortFunc(out, func(a, b Worker) int { return strings.Compare(a.Name, b.Name) })
				return out, nil
			}
			if w, ok := workerOf(entry); ok {
				out = append(out, w)
			}
		}
	}
}

func workerOf(entry jetstream.KeyValueEntry) (Worker, bool) {
	var m member
	if json.Unmarshal(entry.Value(), &m) != nil {
		return Worker{}, false
	}
	started, _ := time.Parse(time.RFC3339, m.Started) // zero if malformed
	return Worker{m.Name, started, m.Status, m.Holds, m.Leaving}, true
}
