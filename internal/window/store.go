package window

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Store is a namespace in Redis.
type Store struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // the same client; nil where it is not one of a cluster
	keys    keys
	id      atomic.Pointer[string] // of the layout record, once EnsureLayout has seen it
}

// NewStore is the namespace ns on a client that must not retry commands by
// itself (a repeated HINCRBY counts twice); of a cluster's client that holds for
// the clients of its nodes, and reads come from masters alone.
func NewStore(client redis.UniversalClient, ns string) *Store {
	cluster, _ := client.(*redis.ClusterClient)
	return &Store{client: client, cluster: cluster, keys: keys{ns}}
}

// ErrNoLayout is the answer of a namespace that no worker has written to yet.
var ErrNoLayout = errors.New("the namespace has no layout yet: start ingest first")

// ErrBadLayout is a layout record that this program cannot read: of another
// version of it, or of something else.
var ErrBadLayout = errors.New("layout record")

// LayoutMismatchError is a namespace that was made with other settings.
type LayoutMismatchError struct {
	Namespace  string
	Have, Want Layout
}

func (e *LayoutMismatchError) Error() string {
	return fmt.Sprintf("namespace %q was made with TIERS=%s SHARDS=%d, and this worker has TIERS=%s SHARDS=%d: use those settings, or another TALLYROLL_NAMESPACE (it counts anew from what the streams still hold)",
		e.Namespace, e.Have.Tiers, e.Have.Shards, e.Want.Tiers, e.Want.Shards)
}

// layoutRecord is the layout as Redis keeps it.
type layoutRecord struct {
	Version int    `json:"version"`
	Tiers   string `json:"tiers"`
	Shards  int    `json:"shards"`
	Hash    string `json:"hash"` // of counters
	ID      string `json:"id"`   // see Store.ID
}

const layoutVersion, layoutHash = 1, "xxhash64"

func encodeLayout(l Layout, id string) string {
	out, err := json.Marshal(layoutRecord{layoutVersion, l.Tiers.String(), l.Shards, layoutHash, id})
	if err != nil {
		panic(err) // strings and integers always encode
	}
	return string(out)
}

func decodeLayout(text string) (Layout, error) {
	l, _, err := decodeLayoutID(text)
	return l, err
}

func decodeLayoutID(text string) (l Layout, id string, err error) {
	var r layoutRecord
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Layout{}, "", fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	if r.Version != layoutVersion || r.Hash != layoutHash {
		return Layout{}, "", fmt.Errorf("%w has version %d and hash %q; this program knows version %d and %s", ErrBadLayout, r.Version, r.Hash, layoutVersion, layoutHash)
	}
	tiers, err := ParseTiers(r.Tiers, 1<<20) // the writer has checked its own limit
	if err != nil {
		return Layout{}, "", fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	l = Layout{Tiers: tiers, Shards: r.Shards}
	if err := l.Validate(); err != nil {
		return Layout{}, "", fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	return l, r.ID, nil
}

// ID tells this namespace from one of the same name in another Redis: workers of
// the two must not share streams. It is random, made with the layout record, and
// empty before EnsureLayout. A Redis that was emptied gets the same one again
// from any worker that knew it.
func (s *Store) ID() string {
	if id := s.id.Load(); id != nil {
		return *id
	}
	return ""
}

// EnsureLayout writes the layout where the namespace has none, and otherwise
// checks that it is the same; a different one is a *LayoutMismatchError.
func (s *Store) EnsureLayout(ctx context.Context, want Layout) error {
	id := s.ID()
	if id == "" {
		id = rand.Text()
	}
	if err := s.client.SetNX(ctx, s.keys.layout(), encodeLayout(want, id), 0).Err(); err != nil {
		return fmt.Errorf("write layout of %s: %w", s.keys.namespace, err)
	}
	have, id, err := s.layout(ctx)
	if err != nil {
		return err
	}
	if have.Shards != want.Shards || !slices.Equal(have.Tiers, want.Tiers) {
		return &LayoutMismatchError{Namespace: s.keys.namespace, Have: have, Want: want}
	}
	s.id.Store(&id)
	return nil
}

// Layout reads the namespace's layout; ErrNoLayout where there is none.
func (s *Store) Layout(ctx context.Context) (Layout, error) {
	l, _, err := s.layout(ctx)
	return l, err
}

func (s *Store) layout(ctx context.Context) (l Layout, id string, err error) {
	text, err := s.client.Get(ctx, s.keys.layout()).Result()
	if errors.Is(err, redis.Nil) {
		return Layout{}, "", ErrNoLayout
	}
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return Layout{}, "", fmt.Errorf("%w %s is no string: %w", ErrBadLayout, s.keys.layout(), err)
	}
	if err != nil {
		return Layout{}, "", fmt.Errorf("read layout of %s: %w", s.keys.namespace, err)
	}
	return decodeLayoutID(text)
}
