package schema

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
)

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

// Store is a namespace in Redis.
type Store struct {
	Client       *cluster.Client
	Claims       Claims
	Rules        RuleTexts
	Keys         Keys
	id           atomic.Pointer[string] // of the layout record, once EnsureLayout has seen it
	LatestClocks latestClocks
}

// NewStore returns the namespace ns on a client. The client, and the clients of a cluster's nodes, must not
// retry commands, because a repeated HINCRBY counts twice. A cluster's client must read only from masters.
func NewStore(client redis.UniversalClient, ns string) *Store {
	k := Keys{ns}
	c := cluster.NewClient(client)
	return &Store{Client: c, Claims: Claims{c, k.Claims()}, Rules: RuleTexts{c, k.rules()}, Keys: k}
}

// RewriteTorn returns a function for redis.Options.OnConnect that makes Redis rewrite its append-only file if
// its end may be torn: see cluster.RewriteTorn.
func RewriteTorn(tell func(error)) func(context.Context, *redis.Conn) error {
	return cluster.RewriteTorn(tell)
}

// ErrNoLayout means that no worker has written to the namespace yet. Such errors name the namespace.
var ErrNoLayout = errors.New("no worker has counted in this namespace yet: start ingest with the same REDIS_URL and " +
	"TALLYROLL_NAMESPACE")

// noLayoutError is an ErrNoLayout that names the namespace, in case it, or the Redis, is the wrong one.
type noLayoutError struct{ namespace string }

// NoLayout returns the ErrNoLayout of a namespace.
func NoLayout(namespace string) error { return &noLayoutError{namespace} }

func (e *noLayoutError) Error() string {
	return fmt.Sprintf("no worker has counted in the namespace %s yet: start ingest with the same REDIS_URL and "+
		"TALLYROLL_NAMESPACE", e.namespace)
}

func (e *noLayoutError) Is(target error) bool { return target == ErrNoLayout }

// LayoutMismatchError means that the namespace was created with other settings.
type LayoutMismatchError struct {
	namespace  string
	Have, want window.Layout
}

func (e *LayoutMismatchError) Error() string {
	names, have, want := "TIERS and SHARDS", "", ""
	if !e.Have.UniqueTiers.AnswersLike(e.want.UniqueTiers) {
		names = "TIERS, UNIQUE_TIERS and SHARDS"
		have, want = " UNIQUE_TIERS="+window.FormatUniqueTiers(e.Have.UniqueTiers), " UNIQUE_TIERS="+
			window.FormatUniqueTiers(e.want.UniqueTiers)
	}
	return fmt.Sprintf("namespace %q was made with TIERS=%s%s SHARDS=%d, and this worker has TIERS=%s%s SHARDS=%d: to "+
		"go on with the namespace, unset %s and start the worker again; to change its tiers, stop all workers and run "+
		"ingest --retier; to use these settings, set another TALLYROLL_NAMESPACE (counting in that one starts from "+
		"what the streams still hold)",
		e.namespace, e.Have.Tiers, have, e.Have.Shards, e.want.Tiers, want, e.want.Shards, names)
}

// ErrLayoutLost means streams without a layout record. With another layout, counts would not be found.
var ErrLayoutLost = errors.New("the layout record is lost: a running worker writes it again within ten seconds; if " +
	"none runs, set TIERS, UNIQUE_TIERS and SHARDS to those that the namespace was made with")

// CheckLayout returns ErrLayoutLost if only the layout record was deleted.
func (s *Store) CheckLayout(ctx context.Context) error {
	streams, err := s.Client.Exists(ctx, s.Keys.Streams()).Result()
	if err != nil || streams == 0 {
		return err
	}
	record,
		err := s.Client.Exists(ctx, s.Keys.Layout()).Result() // after the streams: the record is written before them
	if err == nil && record == 0 {
		err = ErrLayoutLost
	}
	return err
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

// ErrRecreated means that the namespace was recreated, and its hashes span other epochs now.
var ErrRecreated = errors.New("a worker of another version has recreated the namespace: its hashes span other " +
	"times now")

// EnsureLayout writes the layout, or checks that it is the same. Errors: those of OpenLayout, and
// ErrRecreated.
func (s *Store) EnsureLayout(ctx context.Context, want window.Layout) error {
	have, err := s.OpenLayout(ctx, want)
	if err == nil && !slices.Equal(have.Tiers, want.Tiers) { // the unique tiers have no spans that could differ
		return ErrRecreated
	}
	return err
}

// OpenLayout returns the namespace's layout, which callers must use, and writes the one wanted if there is
// none. It returns a *LayoutMismatchError if tiers, unique tiers or shards differ, and a *RetieringError
// while they are being changed. The span of hashes is the one with which the namespace was created.
func (s *Store) OpenLayout(ctx context.Context, want window.Layout) (window.Layout, error) {
	id := s.ID()
	if id == "" {
		id = rand.Text()
	}
	if err := s.Client.SetNX(ctx, s.Keys.Layout(), LayoutRecord{Layout: want, id: id}.Encode(), 0).Err(); err != nil {
		return window.Layout{}, fmt.Errorf("write layout of %s: %w", s.Keys.Namespace, err)
	}
	have, err := s.ReadLayout(ctx)
	if err != nil {
		return window.Layout{}, err
	}
	if have.Change.forbidsCounting() {
		return window.Layout{}, &RetieringError{s.Keys.Namespace, have.Tiers, have.Change.Other}
	}
	if have.Shards != want.Shards || !have.Tiers.AnswersLike(want.Tiers) ||
		!have.UniqueTiers.AnswersLike(want.UniqueTiers) {
		return window.Layout{}, &LayoutMismatchError{s.Keys.Namespace, have.Layout, want}
	}
	s.id.Store(&have.id)
	return have.Layout, nil
}

// Layout reads the namespace's layout. It returns ErrNoLayout if it is missing.
func (s *Store) Layout(ctx context.Context) (window.Layout, error) {
	found, err := s.ReadLayout(ctx)
	return found.Layout, err
}

// Identify reads the namespace's layout and id; see ID.
func (s *Store) Identify(ctx context.Context) (window.Layout, string, error) {
	found, err := s.ReadLayout(ctx)
	return found.Layout, found.id, err
}

func (s *Store) ReadLayout(ctx context.Context) (LayoutRecord, error) {
	text, err := s.Client.Get(ctx, s.Keys.Layout()).Result()
	switch err := cluster.WrapForeign(s.Keys.Layout(), err); {
	case errors.Is(err, redis.Nil):
		return LayoutRecord{}, NoLayout(s.Keys.Namespace)
	case window.IsForeign(err):
		return LayoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	case err != nil:
		return LayoutRecord{}, fmt.Errorf("read layout of %s: %w", s.Keys.Namespace, err)
	}
	return ParseLayoutRecord(text)
}
