package schema

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
)

// Overflow is a prefix of which new names may be counted on overflow counters. Workers list it with the
// streams before they count any, so that a reader of one of the names knows where its hits may be.
type Overflow struct {
	Prefix string
	Until  int64 // Unix milliseconds: no hit there is later
}

// namesField and a prefix are the field of the list of streams; no stream's name has a dot. Its value is
// Until.
const namesField = ".names "

// Overflows lists prefixes, with each once a minute.
type Overflows struct {
	client *cluster.Client
	key    string

	mu    sync.Mutex
	until map[string]int64 // by prefix, what this process has listed
}

// listedFor is how long an entry holds. Its last half is never used: so hits ahead of the clock are not after
// its end, and neither is a worker whose entry another one replaces at the same moment.
const listedFor = 3 * time.Minute

// IsListed reports whether the entry of a bound holds for long enough.
func (o *Overflows) IsListed(b window.NameBound, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.until[b.Prefix]-now.UnixMilli() > listedFor.Milliseconds()/2
}

// List lists that new names under a bound may overflow from now on. Its times are whole minutes, so that
// writers of several shards list the same: readers read the list again after each change.
func (o *Overflows) List(ctx context.Context, b window.NameBound, now time.Time) error {
	field := namesField + b.Prefix
	fail := func(err error) error {
		return fmt.Errorf("list the overflow of %q: %w", b.Prefix, cluster.WrapForeign(o.key, err))
	}
	text, err := o.client.HGet(ctx, o.key, field).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fail(err)
	}
	until := now.Truncate(time.Minute).Add(listedFor).UnixMilli()
	if have, err := parseOverflow(field, text); err == nil {
		until = max(until, have.Until)
	}
	if err := o.client.HSet(ctx, o.key, field, until).Err(); err != nil {
		return fail(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.until == nil {
		o.until = make(map[string]int64)
	}
	o.until[b.Prefix] = until
	return nil
}

func parseOverflow(field, value string) (o Overflow, err error) {
	o.Prefix = strings.TrimPrefix(field, namesField)
	if o.Until, err = strconv.ParseInt(value, 10, 64); err != nil || !window.IsMoment(o.Until) {
		return o, fmt.Errorf("the list of streams has %s %q: a moment was expected", field, value)
	}
	return o, nil
}

// parseOverflows returns those of a list of streams, the longest prefix first.
func parseOverflows(list map[string]string) (out []Overflow, err error) {
	for field, value := range list {
		if strings.HasPrefix(field, namesField) {
			o, err := parseOverflow(field, value)
			if err != nil {
				return nil, err
			}
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b Overflow) int {
		return cmp.Or(cmp.Compare(len(b.Prefix), len(a.Prefix)), strings.Compare(a.Prefix, b.Prefix))
	})
	return out, nil
}

// OverflowsOf returns the overflow counters that may have hits of a counter later than from (Unix
// milliseconds), the longest prefix first.
func (d *Directory) OverflowsOf(counter string, from int64) (names []string) {
	for _, o := range d.Overflows {
		if !strings.HasPrefix(counter, o.Prefix) || from >= o.Until || counter == window.AllHits {
			continue
		}
		name := d.Layout.Overflow(o.Prefix, d.Layout.ShardOf(window.HashCounter([]byte(counter))))
		if name != counter {
			names = append(names, name)
		}
	}
	return names
}

// OverflowsUnder returns the overflow counters of all shards that may have hits, later than from (Unix
// milliseconds), of counters whose names begin with a prefix.
func (d *Directory) OverflowsUnder(prefix string, from int64) (names []string) {
	for _, o := range d.Overflows {
		if from < o.Until && (strings.HasPrefix(o.Prefix, prefix) || strings.HasPrefix(prefix, o.Prefix)) {
			for shard := range d.Layout.Shards {
				names = append(names, d.Layout.Overflow(o.Prefix, shard))
			}
		}
	}
	return names
}
