package audit

import (
	"context"
	"fmt"
	"slices"

	"tallyroll/internal/window/inspect"
)

// sweptKeys is what one sweep of all keys of the namespace has found.
type sweptKeys struct {
	streams  []string // that have cursors
	oddities []inspect.Oddity
	uniques  map[uint64]bool // hashes of the counters that had unique cells
	unlisted []string        // counters that have cells and are not listed, in order
}

// maxOddities bounds the suspicious keys that are remembered.
const maxOddities = 10_000

func sweepKeys(ctx context.Context, inspector *inspect.Inspector, pace pace) (keys sweptKeys, err error) {
	keys.uniques = make(map[uint64]bool)
	err = inspector.Sweep(ctx, func(found inspect.Swept) error {
		pace.wait(ctx, found.Keys)
		for _, hash := range found.Uniques {
			keys.uniques[hash] = true
		}
		keys.streams = append(keys.streams, found.Streams...)
		keys.oddities = append(keys.oddities, found.Odd...)
		if n := len(keys.oddities); n > maxOddities {
			odd := keys.oddities[n-1]
			return fmt.Errorf("%w: more than %d keys are not as a worker leaves them, such as %s: %s: does something "+
				"else write to the namespace?", errUnjudged, maxOddities, odd.Key, odd.What)
		}
		return ctx.Err()
	})
	for _, odd := range keys.oddities {
		if odd.Counter != "" {
			keys.unlisted = append(keys.unlisted, odd.Counter)
		}
	}
	slices.Sort(keys.unlisted)
	keys.unlisted = slices.Compact(keys.unlisted)
	slices.Sort(keys.streams)
	keys.streams = slices.Compact(keys.streams)
	return keys, err
}

// addUnlisted adds the unlisted counters of a ledger's range to names behind another.
func (k *sweptKeys) addUnlisted(names []string, after string, l *ledger) []string {
	for _, name := range k.unlisted {
		if name > after && (l.open || name <= l.to) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
