package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

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
