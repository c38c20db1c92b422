package window

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Store is a namespace in Redis.
type Store struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // the same client; nil where it is not one of a cluster
	keys    keys
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
}

const layoutVersion, layoutHash = 1, "xxhash64"

func encodeLayout(l Layout) string {
	out, err := json.Marshal(layoutRecord{layoutVersion, l.Tiers.String(), l.Shards, layoutHash})
	if err != nil {
		panic(err) // strings and integers always encode
	}
	return string(out)
}

func decodeLayout(text string) (Layout, error) {
	var r layoutRecord
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Layout{}, fmt.Errorf("layout record: %w", err)
	}
	if r.Version != layoutVersion || r.Hash != layoutHash {
		return Layout{}, fmt.Errorf("layout record has version %d and hash %q; this program knows version %d and %s", r.Version, r.Hash, layoutVersion, layoutHash)
	}
	tiers, err := ParseTiers(r.Tiers, 1<<20) // the writer has checked its own limit
	if err != nil {
		return Layout{}, fmt.Errorf("layout record: %w", err)
	}
	l := Layout{Tiers: tiers, Shards: r.Shards}
	return l, l.Validate()
}

// EnsureLayout writes the layout where the namespace has none, and otherwise
// checks that it is the same; a different one is a *LayoutMismatchError.
func (s *Store) EnsureLayout(ctx context.Context, want Layout) error {
	if err := s.client.SetNX(ctx, s.keys.layout(), encodeLayout(want), 0).Err(); err != nil {
		return fmt.Errorf("write layout of %s: %w", s.keys.namespace, err)
	}
	have, err := s.Layout(ctx)
	if err != nil {
		return err
	}
	if have.Shards != want.Shards || !slices.Equal(have.Tiers, want.Tiers) {
		return &LayoutMismatchError{Namespace: s.keys.namespace, Have: have, Want: want}
	}
	return nil
}

// Layout reads the namespace's layout; ErrNoLayout where there is none.
func (s *Store) Layout(ctx context.Context) (Layout, error) {
	text, err := s.client.Get(ctx, s.keys.layout()).Result()
	if errors.Is(err, redis.Nil) {
		return Layout{}, ErrNoLayout
	}
	if err != nil {
		return Layout{}, fmt.Errorf("read layout of %s: %w", s.keys.namespace, err)
	}
	return decodeLayout(text)
}

// AddStream puts a stream on the list that readers find the cursors by.
func (s *Store) AddStream(ctx context.Context, stream string) error {
	if err := s.client.SAdd(ctx, s.keys.streams(), stream).Err(); err != nil {
		return fmt.Errorf("list stream %s: %w", stream, err)
	}
	return nil
}
