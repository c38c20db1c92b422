package schema

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
)

// Store is a namespace in Redis.
type Store struct {
	Client       *cluster.Client
	Claims       Claims
	Rules        RuleTexts
	Keys         Keys
	MaxLogBytes  int                    // see window.ShardBatch.Place; tests lower it
	id           atomic.Pointer[string] // of the layout record, once EnsureLayout has seen it
	LatestClocks latestClocks
}

// NewStore returns the namespace ns on a client. The client, and the clients of a cluster's nodes, must not
// retry commands, because a repeated HINCRBY counts twice. A cluster's client must read only from masters.
func NewStore(client redis.UniversalClient, ns string) *Store {
	k := Keys{ns}
	c := cluster.NewClient(client)
	return &Store{Client: c, Claims: Claims{c, k.Claims()}, Rules: RuleTexts{c, k.rules()}, Keys: k,
		MaxLogBytes: window.MaxLogBytes}
}

// RewriteTorn returns a function for redis.Options.OnConnect that makes Redis rewrite its append-only file if
// its end may be torn: see cluster.RewriteTorn.
func RewriteTorn(tell func(error)) func(context.Context, *redis.Conn) error {
	return cluster.RewriteTorn(tell)
}

// ID distinguishes this namespace from one of the same name in another Redis: workers must not share their
// streams. It is random, and empty before EnsureLayout. If Redis is emptied, workers that have the ID write
// it again.
func (s *Store) ID() string {
	if id := s.id.Load(); id != nil {
		return *id
	}
	return ""
}

// ScanCount is how many keys Redis checks for one SCAN. They take it some hundred µs.
const ScanCount = 1000

// Scan calls do with keys of the namespace's shards, some at a time, and their server. A key may come twice.
func (s *Store) Scan(ctx context.Context, do func(at cluster.Server, keys []string) error) error {
	servers, err := s.Client.Masters(ctx)
	if err != nil {
		return fmt.Errorf("find the masters of the cluster: %w", err)
	}
	for _, at := range servers {
		var cursor uint64
		for {
			keys, next, err := at.Scan(ctx, cursor, s.Keys.Namespace+":{*}:*", ScanCount).Result()
			if err != nil {
				return fmt.Errorf("scan the keys of %s: %w", at.Name, err)
			}
			if err := do(at, keys); err != nil {
				return err
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
	}
	return nil
}

// latestClocks are the latest times read from the clock of each shard's server.
type latestClocks struct {
	mu     sync.Mutex
	latest map[int]time.Time // by shard
}

// Observe records a time of a shard's server, and returns the latest one.
func (c *latestClocks) Observe(shard int, now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest == nil {
		c.latest = make(map[int]time.Time)
	}
	if now.After(c.latest[shard]) {
		c.latest[shard] = now
	}
	return c.latest[shard]
}

// RuleTexts are the texts of the rules that cursors name, once per namespace. This package does not interpret
// them.
type RuleTexts struct {
	client *cluster.Client
	key    string
}

// Keep writes texts, by fingerprint, that Redis does not hold. Call it before a cursor names one.
func (r RuleTexts) Keep(ctx context.Context, texts map[string][]byte) error {
	if len(texts) == 0 {
		return nil
	}
	kept, err := r.Fingerprints(ctx)
	if err != nil {
		return err
	}
	var missing []any
	for fingerprint, text := range texts {
		if !slices.Contains(kept, fingerprint) {
			missing = append(missing, fingerprint, text)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := r.client.HSet(ctx, r.key, missing...).Err(); err != nil {
		return fmt.Errorf("keep rules: %w", cluster.WrapForeign(r.key, err))
	}
	return nil
}

// Read reads the text with a fingerprint. found is false if Redis does not hold it.
func (r RuleTexts) Read(ctx context.Context, fingerprint string) (text []byte, found bool, err error) {
	text, err = r.client.HGet(ctx, r.key, fingerprint).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read rules %s: %w", fingerprint, cluster.WrapForeign(r.key, err))
	}
	return text, true, nil
}

// Fingerprints lists the fingerprints of the texts that Redis holds.
func (r RuleTexts) Fingerprints(ctx context.Context) ([]string, error) {
	kept, err := r.client.HKeys(ctx, r.key).Result()
	if err != nil {
		return nil, fmt.Errorf("list the rules that are kept: %w", cluster.WrapForeign(r.key, err))
	}
	return kept, nil
}

// Remove removes texts that no cursor names any more.
func (r RuleTexts) Remove(ctx context.Context, fingerprints []string) error {
	if err := r.client.HDel(ctx, r.key, fingerprints...).Err(); err != nil {
		return fmt.Errorf("remove rules: %w", cluster.WrapForeign(r.key, err))
	}
	return nil
}

// Key returns the key of the texts, for messages.
func (r RuleTexts) Key() string { return r.key }

// ParseErasure parses the token in Keys.Erasure; "" if nothing was ever erased. The last writer to have
// created a cursor follows it.
func ParseErasure(reply *redis.StringCmd) (string, error) {
	text, err := reply.Result()
	switch {
	case errors.Is(err, redis.Nil):
		return "", nil
	case err != nil:
		return "", cluster.WrapForeign(reply.Args()[1].(string), err)
	}
	text, _, _ = strings.Cut(text, " ")
	return text, nil
}

// NewErasure returns a random token for an erasure after another one. It begins with the moment (Unix
// milliseconds) up to which it may have removed hits, for a comparison of cells with streams.
func NewErasure(before string, upTo int64) string {
	return strconv.FormatInt(max(upTo, ErasedUpTo(before)), 10) + "-" + rand.Text()[:12]
}

// ErasedUpTo returns the moment in a token of ParseErasure; 0 if nothing was ever erased.
func ErasedUpTo(text string) int64 {
	moment, _, _ := strings.Cut(text, "-")
	n, _ := strconv.ParseInt(moment, 10, 64)
	return n
}
