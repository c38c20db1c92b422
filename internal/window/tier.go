package window

import (
	"fmt"
	"strings"
	"time"
)

// Tier is a cell size and the longest window that cells of this size answer.
type Tier struct {
	Cell   time.Duration // whole seconds
	Window time.Duration // a whole number of cells
}

// Tiers are ordered from the finest cells to the coarsest.
type Tiers []Tier

const (
	// DefaultMaxCells is the most cells of one hash that Redis keeps as a compact
	// listpack with its own defaults (hash-max-listpack-entries is 512 in 7.x; 513
	// fields take about ten times the memory of 512).
	DefaultMaxCells = 512
	// MaxTiers bounds the work that one hit causes.
	MaxTiers = 8
)

// ParseTiers reads cell/window pairs such as "1s/1m,1m/1h,15m/1d,6h/30d",
// finest first. A hash holds the cells of two windows; maxCells is the most
// that a hash may hold.
func ParseTiers(s string, maxCells int) (Tiers, error) {
	var tiers Tiers
	for pair := range strings.SplitSeq(s, ",") {
		t, err := parseTier(strings.TrimSpace(pair))
		if err != nil {
			return nil, err
		}
		if cells := t.cellsPerEpoch(); cells > int64(maxCells) {
			return nil, fmt.Errorf("tier %s needs a hash of %d cells (two windows); at most %d are allowed: use larger cells, a shorter window, or raise TIERS_MAX_CELLS", t, cells, maxCells)
		}
		if len(tiers) > 0 {
			last := tiers[len(tiers)-1]
			if t.Cell <= last.Cell || t.Window <= last.Window {
				return nil, fmt.Errorf("tier %s after %s: tiers go from fine to coarse, each with a larger cell and a longer window than the one before", t, last)
			}
		}
		tiers = append(tiers, t)
	}
	if len(tiers) > MaxTiers {
		return nil, fmt.Errorf("%d tiers; at most %d are allowed", len(tiers), MaxTiers)
	}
	return tiers, nil
}

func parseTier(pair string) (Tier, error) {
	cell, window, ok := strings.Cut(pair, "/")
	if !ok {
		return Tier{}, fmt.Errorf("tier %q: write a cell and a window, such as 1m/1h", pair)
	}
	var t Tier
	var err error
	if t.Cell, err = ParseDuration(cell); err != nil {
		return Tier{}, fmt.Errorf("tier %q: cell: %w", pair, err)
	}
	if t.Window, err = ParseDuration(window); err != nil {
		return Tier{}, fmt.Errorf("tier %q: window: %w", pair, err)
	}
	if t.Window%t.Cell != 0 {
		return Tier{}, fmt.Errorf("tier %q: a window is a whole number of cells, and %s is not a multiple of %s", pair, window, cell)
	}
	return t, nil
}

func (t Tier) String() string { return FormatDuration(t.Cell) + "/" + FormatDuration(t.Window) }

func (ts Tiers) String() string {
	parts := make([]string, len(ts))
	for i, t := range ts {
		parts[i] = t.String()
	}
	return strings.Join(parts, ",")
}

// Reach says how far back each tier answers, for messages to people.
func (ts Tiers) Reach() string {
	parts := make([]string, len(ts))
	for i, t := range ts {
		parts[i] = fmt.Sprintf("%s cells reach back %s", FormatDuration(t.Cell), FormatDuration(t.Window))
	}
	return strings.Join(parts, ", ")
}
