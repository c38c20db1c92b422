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
	Overflows    *Overflows
	MaxLogBytes  int                    // see window.ShardBatch.Place; tests lower it
	Bounds       window.NameBounds      // of new names; see commit.Writer
	NamesMemory  int                    // percent of maxmemory from which on no new name has room; 0: at any use
	id           atomic.Pointer[string] // of the layout record, once EnsureLayout has seen it
	LatestClocks latestClocks
}

// NewStore returns the namespace ns on a client. The client, and the clients of a cluster's nodes, must not
// retry commands, because a repeated HINCRBY counts twice. A cluster's client must read only from masters.
func NewStore(client redis.UniversalClient, ns string) *Store {
	k := Keys{ns}
	c := cluster.NewClient(client)
	return &Store{Client: c, Claims: Claims{c, k.Claims()}, Rules: RuleTexts{c, k.rules()}, Keys: k,
		Overflows: &Overflows{client: c, key: k.Streams()}, MaxLogBytes: window.MaxLogBytes}
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
	latest map[int]clockReading // by shard
}

// clockReading is a time of a server, and when this process had received it.
type clockReading struct{ clock, received time.Time }

// Observe records a time of a shard's server. It returns the latest one, and how far the clock has fallen
// since: by what it shows less, and by what has passed until this process asked. Unlike window.ClockAhead,
// the result does not change if an operator sets the clock of this process.
func (c *latestClocks) Observe(shard int, clock, asked time.Time) (latest time.Time, fell time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest == nil {
		c.latest = make(map[int]clockReading)
	}
	if clock.After(c.latest[shard].clock) {
		c.latest[shard] = clockReading{clock, time.Now()}
	}
	r := c.latest[shard]
	return r.clock, r.clock.Sub(clock) + max(asked.Sub(r.received), 0)
}

// DescribeFull returns, human-readable, what fills the server of a shard: its maxmemory, and the prefix with
// which most names begin, of some of the shard's. What Redis does not tell is left out.
func (s *Store) DescribeFull(ctx context.Context, l window.Layout, shard int) string {
	const read = 200 // names
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	t := l.NamesTier()
	key := s.Keys.Names(shard, t, t.NamesOf(t.EpochAt(time.Now().UnixMilli())))
	node, err := s.Client.NodeOf(ctx, key)
	if err != nil {
		return ""
	}
	var out []string
	_, memory, _ := strings.Cut(node.Info(ctx, "memory").Val(), "maxmemory_human:")
	if limit, _, ok := strings.Cut(memory, "\r\n"); ok {
		out = append(out, "maxmemory is "+limit)
	}
	names, begin, prefix := node.ZRandMember(ctx, key, read).Val(), make(map[string]int), ""
	for _, name := range names {
		if i := strings.IndexAny(name[1:], "./:"); i >= 0 {
			begin[name[:i+2]]++
			if begin[name[:i+2]] > begin[prefix] {
				prefix = name[:i+2]
			}
		}
	}
	if prefix != "" {
		out = append(out, fmt.Sprintf("%d %% of %d names read begin with %.64q", 100*begin[prefix]/len(names),
			len(names), prefix))
	}
	return strings.Join(out, ", and ")
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
