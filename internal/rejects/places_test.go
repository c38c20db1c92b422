package rejects

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the order of the acknowledgements, and with repeated ones, the places
// are those that were added, in as few spans as there are runs.
func TestPlacesAreThoseAdded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seqs := rapid.SliceOf(rapid.Uint64Range(1, 40)).Draw(t, "sequences")
		var p Places
		for _, seq := range seqs {
			p.Add("HITS", seq)
		}
		runs := 0
		for seq := uint64(0); seq <= 41; seq++ {
			want := slices.Contains(seqs, seq)
			if p.holds("HITS", seq) != want || p.holds("OTHER", seq) {
				t.Fatalf("%d: %v, want %v", seq, !want, want)
			}
			if want && !slices.Contains(seqs, seq-1) {
				runs++
			}
		}
		if p.spans != runs || len(p.streams["HITS"]) != runs || p.left != 0 {
			t.Fatalf("%d spans %v for %d runs", p.spans, p.streams, runs)
		}
	})
}

func TestPlacesAreBounded(t *testing.T) {
	t.Parallel()
	var p Places
	for i := range uint64(maxSpans + 10) {
		p.Add("HITS", 1+2*i)
	}
	if p.spans != maxSpans || len(p.streams["HITS"]) != maxSpans || p.left != 10 {
		t.Fatalf("%d spans, %d messages left out", p.spans, p.left)
	}
	if p.Add("HITS", 2); p.spans != maxSpans-1 || !p.holds("HITS", 2) {
		t.Fatal("what closes a gap needs no room")
	}
}
