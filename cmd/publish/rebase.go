package main

import "math"

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

func (l *hitLog) add(h hit) error {
	id, ok := l.ids[string(h.key)]
	if !ok {
		id = uint32(len(l.names))
		name := string(h.key)
		l.ids[name] = id
		l.names = append(l.names, name)
	}
	n := int32(h.n)
	if h.n > math.MaxInt32 {
		n = ^int32(len(l.large))
		l.large = append(l.large, h.n)
	}
	l.hits = append(l.hits, loggedHit{ts: h.ts, name: id, n: n})
	return nil
}

// rebase shifts all times by the same amount, so that the latest is at the
// given Unix millisecond. Hits without a time keep none.
func (l *hitLog) rebase(last int64) {
	latest := int64(math.MinInt64)
	for _, h := range l.hits {
		latest = max(latest, h.ts) // noTime is the least of all
	}
	for i := range l.hits {
		if l.hits[i].ts != noTime {
			l.hits[i].ts += last - latest
		}
	}
}

// replay hands the hits to take, in the log's order.
func (l *hitLog) replay(take func(hit) error) error {
	var key []byte
	for _, h := range l.hits {
		key = append(key[:0], l.names[h.name]...)
		n := int64(h.n)
		if n < 0 {
			n = l.large[^h.n]
		}
		if err := take(hit{key: key, n: n, ts: h.ts}); err != nil {
			return err
		}
	}
	return nil
}
