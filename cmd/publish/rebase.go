package main

import (
	"fmt"
	"slices"

	"tallyroll/internal/hit"
)

// hitLog holds a whole log: 24 bytes for a hit, and each name and unique value once.
type hitLog struct {
	ids   map[string]uint32
	names []string // of counters, and unique values
	hits  []loggedHit
}

type loggedHit struct {
	ts, n  int64
	name   uint32
	unique uint32 // one more than its index in names; 0: no unique value
}

func newHitLog() *hitLog { return &hitLog{ids: map[string]uint32{}} }

func (l *hitLog) add(h hit.Hit) error {
	logged := loggedHit{ts: h.At, n: h.N, name: l.id(h.Counter)}
	if h.Unique != nil {
		logged.unique = l.id(h.Unique) + 1
	}
	l.hits = append(l.hits, logged)
	return nil
}

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

// rebase shifts all times by the same amount, so that the latest is last (Unix milliseconds). Hits without a
// time keep none. It drops hits that would come before all allowed times, and returns how many.
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

func (l *hitLog) replay(feed func(hit.Hit) error) error {
	var key, unique []byte
	for _, h := range l.hits {
		key = append(key[:0], l.names[h.name]...)
		out := hit.Hit{Counter: key, N: h.n, At: h.ts}
		if h.unique > 0 {
			unique = append(unique[:0], l.names[h.unique-1]...)
			out.Unique = unique
		}
		if err := feed(out); err != nil {
			return err
		}
	}
	return nil
}
