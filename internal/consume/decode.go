package consume

import (
	"fmt"
	"time"

	"tallyroll/internal/hit"
	"tallyroll/internal/human"
	"tallyroll/internal/window"
)

// hitLimits are the bounds of hits that are counted in this layout.
func hitLimits(layout window.Layout, maxAhead time.Duration, maxHits int) hit.Limits {
	return hit.Limits{MaxAhead: maxAhead, MaxHits: maxHits, Place: placeIn(layout)}
}

// placeIn returns a function that hashes a counter, and says whether a time was so early that no tier
// held it any more when the hit was stored.
func placeIn(layout window.Layout) func(counter []byte, at, stored int64) (hash uint64, late string) {
	return func(counter []byte, at, stored int64) (uint64, string) {
		hash := window.HashCounter(counter)
		if layout.Holds(hash, at, stored) {
			return hash, ""
		}
		return hash, fmt.Sprintf("ts %d (%s) is %s earlier than the hit was stored (%s); %s (ts is in Unix milliseconds)",
			at, hit.Moment(at), human.Millis(stored-at), hit.Moment(stored), layout.Tiers.Reach())
	}
}
