package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window/internal/cluster"
)

// Declaration is an operator's statement that hits from before counting began were imported, so that none is
// missing. It moves only the moment at which counting began: every mark of a loss still holds. It is a field
// of the cursors, because Redis cannot lose a shard's hits and keep its cursors.
type Declaration struct {
	From int64  // Unix milliseconds: no hit from here on is missing; 0: nothing was declared
	At   int64  // when it was made, Unix milliseconds
	By   string // who made it
}

const declaredField = "complete_from"

func (d Declaration) value() string { return fmt.Sprintf("%d %d %s", d.From, d.At, d.By) }

func parseDeclaration(text string) (Declaration, error) {
	if text == "" {
		return Declaration{}, nil
	}
	from, rest, _ := strings.Cut(text, " ")
	at, by, found := strings.Cut(rest, " ")
	out := Declaration{By: by}
	var okFrom, okAt bool
	out.From, okFrom = parseMoment(from)
	out.At, okAt = parseMoment(at)
	if !found || !okFrom || !okAt {
		return Declaration{}, fmt.Errorf("cursor field %s is %q: two moments in Unix milliseconds and a name were "+
			"expected", declaredField, text)
	}
	return out, nil
}

// ErrUncounted means that a shard has no cursor that could hold a declaration.
var ErrUncounted = errors.New("no worker has counted a stream into all shards yet: let a worker count, and " +
	"declare again")

// Declare writes a declaration into all cursors of the listed streams, or removes it if From is 0. A failure
// can leave it in some cursors: answers about the other shards are as before, until it is repeated. counted
// is when counting began, and missing the latest moment (Unix milliseconds) before which hits are known to be
// missing, over all shards; neither heeds declarations.
func Declare(ctx context.Context, s *Store, d Declaration) (counted, missing int64, err error) {
	layout, err := s.Layout(ctx)
	if err != nil {
		return 0, 0, err
	}
	listed, err := s.Streams(ctx)
	if err != nil {
		return 0, 0, err
	}
	var keys []string
	for shard := range layout.Shards {
		began := int64(0)
		for stream := range listed {
			key := s.Keys.Cursor(shard, stream)
			c, found, err := ParseCursor(key, s.Client.HMGet(ctx, key, CursorFields...))
			if err != nil {
				return 0, 0, fmt.Errorf("read cursor %s: %w", key, err)
			}
			if found {
				keys = append(keys, key)
				if created := c.Created / 1e6; began == 0 || created < began {
					began = created
				}
				missing = max(missing, c.IncompleteBefore)
			}
		}
		if began == 0 {
			return 0, 0, ErrUncounted
		}
		counted = max(counted, began)
	}
	if d.From >= counted {
		return counted, missing, nil
	}
	for _, key := range keys {
		if err := declareIn(ctx, s, key, d); err != nil {
			return counted, missing, fmt.Errorf("write cursor %s: %w", key, err)
		}
	}
	return counted, missing, nil
}

// declareIn tries again if the cursor is changed meanwhile. A cursor that is gone stays so.
func declareIn(ctx context.Context, s *Store, key string, d Declaration) error {
	for {
		err := s.Client.Watch(ctx, []string{key}, func(tx *cluster.WatchedTx) error {
			var created *redis.StringCmd
			if err := tx.Read(ctx, func(p redis.Pipeliner) { created = p.HGet(ctx, key, "created") }); err != nil {
				return err
			}
			if err := created.Err(); errors.Is(err, redis.Nil) {
				return nil
			} else if err != nil {
				return cluster.WrapForeign(key, err)
			}
			_, err := tx.Exec(ctx, func(p redis.Pipeliner) {
				if d.From == 0 {
					p.HDel(ctx, key, declaredField)
				} else {
					p.HSet(ctx, key, declaredField, d.value())
				}
			})
			return err
		})
		if !errors.Is(err, redis.TxFailedErr) || ctx.Err() != nil {
			return err
		}
	}
}
