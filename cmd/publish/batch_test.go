package main

import (
	"testing"

	"tallyroll/internal/hit"
	"tallyroll/internal/outbox"
)

// One message of 200 hits, as it leaves the batcher.
func BenchmarkBatcher(b *testing.B) {
	batch := &batcher{maxHits: 200, maxBytes: 1 << 20, submit: func(m *outbox.Message) error { m.Free(); return nil }}
	h := hit.Hit{Counter: []byte("/images/a.png?x=1&y=2"), N: 1, At: 1763683200000}
	b.ReportAllocs()
	for b.Loop() {
		if err := batch.add(h); err != nil {
			b.Fatal(err)
		}
	}
}
