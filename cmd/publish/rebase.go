package main

import (
	"fmt"
	"math"
	"slices"

	"tallyroll/internal/hit"
)

// hitLog holds a whole log: 16 bytes for a hit and each name once.
type hitLog struct {
	ids   map[string]uint32
	names []string
	hits  []loggedHit
	large []int64 // counts that an int32 does not hold
}

type loggedHit struct {
	ts   int64
	name uint32
	n    int32 // below 0: the count is large[^n]
}

func newHitLog() *hitLog { return &hitLog{ids: map[string]uint32{}} }

func (l *hitLog) add(h hit.Hit) error {
	id, ok := l.ids[string(h.Counter)]
	if !ok {
		id = uint32(len(l.names))
		name := string(h.Counter)
		l.ids[name] = id
		l.names = append(l.names, name)
	}
	n := int32(h.N)
	if h.N > math.MaxInt32 {
		n = ^int32(len(l.large))
		l.large = append(l.large, h.N)
	}
	l.hits = append(l.hits, loggedHit{ts: h.At, name: id, n: n})
	return nil
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
	var key []byte
	for _, h := range l.hits {
		key = append(key[:0], l.names[h.name]...)
		n := int64(h.n)
		if n < 0 {
			n = l.large[^h.n]
		}
		if err := take(hit.Hit{Counter: key, N: n, At: h.ts}); err != nil {
			return err
		}
	}
	return nil
}
