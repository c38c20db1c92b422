package collect

import (
	"errors"
	"fmt"

	"tallyroll/internal/hit"
)

// pageHit makes a page's hit one of ours: the prefix comes before its key, so that a page cannot count outside
// of it.
func (s PageSettings) pageHit(h hit.Hit) (hit.Hit, error) {
	if h.At != hit.NoTime {
		return hit.Hit{}, errors.New("ts: the clocks of visitors are not believed: leave ts out, and the hit counts when it is stored")
	}
	if h.N < 1 || h.N > s.MaxN {
		return hit.Hit{}, fmt.Errorf("n must be an integer from 1 to %d (COLLECT_BEACON_MAX_N)", s.MaxN)
	}
	h.Counter = append([]byte(s.Prefix), h.Counter...)
	err := hit.CheckName(h.Counter)
	if err != nil {
		return hit.Hit{}, fmt.Errorf("key: with the %d bytes of COLLECT_BEACON_PREFIX before it, %w", len(s.Prefix), err)
	}
	return h, nil
}
