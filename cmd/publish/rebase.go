package main

import (
	"fmt"
	"math"
	"slices"

	"tallyroll/internal/hit"
)

// hitLog holds a whole log: 24 bytes for a hit, and each name and unique value once.
type hitLog struct {
	ids   map[string]uint32
	names []string // of counters, and unique values
	hits  []loggedHit
	large []int64 // counts that an int32 does not hold
}

type loggedHit struct {
	ts     int64
	name   uint32
	n      int32  // below 0: the count is large[^n]
	unique uint32 // one more than its place in names; 0 for none
}

func newHitLog() *hitLog { return &hitLog{ids: map[string]uint32{}} }

func (l *hitLog) add(h hit.Hit) error {
	n := int32(h.N)
	if h.N > math.MaxInt32 {
		n = ^int32(len(l.large))
		l.large = append(l.large, h.N)
	}
	logged := loggedHit{ts: h.At, name: l.id(h.Counter), n: n}
	if h.Unique != nil {
		logged.unique = l.id(h.Unique) + 1
	}
	l.hits = append(l.hits, logged)
	return nil
}

// id is the place of a text in names.
func (l *hitLog) id(text []byte) uint32 {
	id, ok := l.ids[string(text)]
	if !ok {
		id = uint32(len(l.names))
		kept := string(text)
		l.ids[kept] = id
		l.names = append(l.names, kept)
	}
	return id
}

// rebase shifts all times by the same amount, so that the latest is at the
// given Unix millisecond. Hits without a time keep none. It drops hits that come to
// lie before all times that a hit can have, and returns how many.
func (l *hitLog) rebase(last int64) (dropped int) {
	latest := int64(hit.NoTime) // the least of all
	for _, h := range l.hits {
		latest = max(latest, h.ts)
	}
	all := len(l.hits)
	l.hits = slices.DeleteFunc(l.hits, func(h loggedHit) bool {
		return h.ts != hit.NoTime && hit.CheckTime(h.ts+last-latest) != nil
	})
	for i := range l.hits {
		if l.hits[i].ts != hit.NoTime {
			l.hits[i].ts += last - latest
		}
	}
	return all - len(l.hits)
}

var errRebased = fmt.Errorf("shifted by --rebase: %w", hit.ErrTimeRange)

// replay hands the hits to take, in the log's order.
func (l *hitLog) replay(take func(hit.Hit) error) error {
	var key, unique []byte
	for _, h := range l.hits {
		key = append(key[:0], l.names[h.name]...)
		n := int64(h.n)
		if n < 0 {
			n = l.large[^h.n]
		}
		out := hit.Hit{Counter: key, N: n, At: h.ts}
		if h.unique > 0 {
			unique = append(unique[:0], l.names[h.unique-1]...)
			out.Unique = unique
		}
		if err := take(out); err != nil {
			return err
		}
	}
	return nil
}
