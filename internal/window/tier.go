package window

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/platform/human"
)

// Tier is a cell size and the longest window that cells of this size answer; see ParseTiers.
type Tier struct {
	Cell   time.Duration // whole seconds
	Window time.Duration // a whole number of cells

	// epoch is how many cells a hash spans, if less than two windows. 0 means two windows.
	epoch int64
	// Generation distinguishes the keys of the tiers that a namespace has had, see Retier. 0 is the first.
	Generation int
	// Since is a moment (Unix milliseconds) at which a cell begins. Earlier cells may lack hits, because they
	// were built from those of other tiers, which did not hold them all. 0: no cell does.
	Since int64
	// Sparse is set for the pseudo tier of the logs: see Layout.SparseTier.
	Sparse bool
}

// Tiers are ordered from the finest cells to the coarsest.
type Tiers []Tier

// DefaultTiers are those of a new namespace. The longest window is a calendar's month, in a zone whose clocks
// change in it. Days of every zone of whole hours begin with its cells, so days, weeks and months are exact.
const DefaultTiers = "1s/1m,1m/1h,15m/1d,1h/32d"

const (
	// EpochCells is the most cells of a new namespace's hashes. An increment then takes Redis at most 2.7 µs,
	// and reading a hash 23 µs (7.0; both grow with the cells). Fewer cells would make more hashes, whose
	// keys cost more memory than they save.
	EpochCells = 256
	// maxCells bounds the cells of a window, and so the hashes of one question.
	maxCells = 1 << 20
	// maxTiers bounds the work that one hit causes.
	maxTiers = 8
)

// ParseTiers parses cell/window pairs, finest first. Hashes span two windows, or EpochCells if that is less.
func ParseTiers(s string) (Tiers, error) {
	var tiers Tiers
	for pair := range strings.SplitSeq(s, ",") {
		t, err := parseTier(strings.TrimSpace(pair))
		if err != nil {
			return nil, err
		}
		if cells := int64(t.Window / t.Cell); cells > maxCells {
			return nil, fmt.Errorf("tier %s has %d cells in a window; at most %d are allowed: use larger cells or a "+
				"shorter window", t, cells, maxCells)
		}
		if len(tiers) > 0 {
			last := tiers[len(tiers)-1]
			if t.Cell <= last.Cell || t.Window <= last.Window {
				return nil, fmt.Errorf("tier %s after %s: tiers go from fine to coarse, each with a larger cell and a "+
					"longer window than the one before", t, last)
			}
		}
		tiers = append(tiers, t)
	}
	if len(tiers) > maxTiers {
		return nil, fmt.Errorf("%d tiers; at most %d are allowed", len(tiers), maxTiers)
	}
	return tiers.Cut(EpochCells), nil
}

// DefaultUniqueTiers are the unique tiers of a new namespace.
const DefaultUniqueTiers = "5m/1h,1h/1d,1d/32d"

// noUniqueTiers is the setting with which unique values are not counted.
const noUniqueTiers = "off"

// ParseUniqueTiers parses the tiers of unique values: like ParseTiers, but each cell is a key; or "off".
func ParseUniqueTiers(s string) (Tiers, error) {
	if s == noUniqueTiers {
		return nil, nil
	}
	tiers, err := ParseTiers(s)
	return tiers.Cut(1), err
}

// FormatUniqueTiers returns the text that ParseUniqueTiers parses.
func FormatUniqueTiers(ts Tiers) string {
	if len(ts) == 0 {
		return noUniqueTiers
	}
	return ts.String()
}

// Cut returns the tiers with hashes that span at most cells cells, and never more than two windows.
func (ts Tiers) Cut(cells int64) Tiers {
	out := slices.Clone(ts)
	for i, t := range out {
		out[i].epoch = 0
		if cells < twoWindows(t) {
			out[i].epoch = cells
		}
	}
	return out
}

// EpochCells returns the most cells that a hash spans. Cut to this many, the tiers do not change.
func (ts Tiers) EpochCells() int64 {
	most := int64(1)
	for _, t := range ts {
		most = max(most, t.CellsPerEpoch())
	}
	return most
}

// AnswersLike reports whether both answer the same windows with the same cells, whatever their hashes.
func (ts Tiers) AnswersLike(others Tiers) bool {
	return slices.EqualFunc(ts, others, func(a, b Tier) bool { return a.Cell == b.Cell && a.Window == b.Window })
}

func parseTier(pair string) (Tier, error) {
	cell, window, ok := strings.Cut(pair, "/")
	if !ok {
		return Tier{}, fmt.Errorf("tier %q: write a cell and a window, such as 1m/1h", pair)
	}
	var t Tier
	var err error
	if t.Cell, err = human.ParseDuration(cell); err != nil {
		return Tier{}, fmt.Errorf("tier %q: cell: %w", pair, err)
	}
	if t.Window, err = human.ParseDuration(window); err != nil {
		return Tier{}, fmt.Errorf("tier %q: window: %w", pair, err)
	}
	if t.Window%t.Cell != 0 {
		return Tier{}, fmt.Errorf("tier %q: a window is a whole number of cells, and %s is not a multiple of %s", pair,
			window, cell)
	}
	return t, nil
}

func (t Tier) String() string {
	return human.FormatDuration(t.Cell) + "/" + human.FormatDuration(t.Window)
}

func (ts Tiers) String() string {
	pairs := make([]string, len(ts))
	for i, t := range ts {
		pairs[i] = t.String()
	}
	return strings.Join(pairs, ",")
}

// Reach returns how far back each tier answers, for messages.
func (ts Tiers) Reach() string {
	reaches := make([]string, len(ts))
	for i, t := range ts {
		reaches[i] = fmt.Sprintf("%s cells reach back %s", human.FormatDuration(t.Cell), human.FormatDuration(t.Window))
	}
	return strings.Join(reaches, ", ")
}

func AppendGeneration(t Tier, to []byte) []byte {
	if t.Generation == 0 {
		return to
	}
	return append(strconv.AppendInt(append(to, 'g'), int64(t.Generation), 10), ':')
}

// HasSameCells reports whether two tiers have the same hashes, under other keys.
func HasSameCells(t Tier, o Tier) bool {
	return t.Cell == o.Cell && t.Window == o.Window && t.CellsPerEpoch() == o.CellsPerEpoch()
}

// Lacking returns the tiers whose windows may lack hits from a moment on at now (Unix milliseconds), because
// their cells were built from tiers that did not reach back further (Tier.Since). A tier is left out if a
// coarser one answers its windows without a lack.
func (ts Tiers) Lacking(from, now int64) (out Tiers) {
	for i, t := range ts {
		begin := max(from, now-t.Window.Milliseconds())
		if t.Since > begin && !slices.ContainsFunc(ts[i+1:], func(coarser Tier) bool {
			return coarser.Since <= begin
		}) {
			out = append(out, t)
		}
	}
	return out
}

// HoldsFrom returns the first moment since which a tier's hashes hold everything.
func (t Tier) HoldsFrom(now int64) int64 {
	epoch := t.EpochAt(now - t.Window.Milliseconds() - t.Grace()/2 - t.EpochMillis())
	for !t.HoldsSince(t.EpochStart(epoch), now) {
		epoch++
	}
	return t.EpochStart(epoch)
}

// InGeneration returns the tiers with keys of a generation, complete.
func (ts Tiers) InGeneration(generation int) Tiers {
	out := slices.Clone(ts)
	for i := range out {
		out[i].Generation, out[i].Since = generation, 0
	}
	return out
}
