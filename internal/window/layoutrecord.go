package window

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ErrBadLayout says that this program cannot read the layout record: another version of
// it, or another program, wrote the record.
var ErrBadLayout = errors.New("layout record")

// layoutRecord is what Redis keeps about a namespace's layout.
type layoutRecord struct {
	Layout
	id string // see Store.ID
}

// layoutJSON is the record's text.
type layoutJSON struct {
	Version int    `json:"version"`
	Tiers   string `json:"tiers"`
	Shards  int    `json:"shards"`
	Hash    string `json:"hash"` // of counters
	ID      string `json:"id"`
	// EpochCells is the most cells that a hash spans. It is missing if every hash spans two windows: in a
	// namespace made before hashes were bounded, or because no tier has more cells.
	EpochCells int64 `json:"epoch_cells,omitempty"`
}

// A record with EpochCells has a version of its own, because a program that does not know the field would
// read and write other hashes. Without it nothing differs, and older programs go on with the namespace.
const layoutVersion, cutLayoutVersion, layoutHash = 1, 2, "xxhash64"

func (r layoutRecord) encode() string {
	text := layoutJSON{layoutVersion, r.Tiers.String(), r.Shards, layoutHash, r.id, r.Tiers.cut()}
	if text.EpochCells > 0 {
		text.Version = cutLayoutVersion
	}
	out, err := json.Marshal(text)
	if err != nil {
		panic(err) // strings and integers always encode
	}
	return string(out)
}

// parseLayoutRecord reads what encode wrote. Its errors are ErrBadLayout.
func parseLayoutRecord(text string) (layoutRecord, error) {
	var found layoutJSON
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return layoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	if found.Version != layoutVersion && found.Version != cutLayoutVersion || found.Hash != layoutHash {
		return layoutRecord{}, fmt.Errorf("%w has version %d and hash %q; this program knows versions %d and %d, and %s", ErrBadLayout, found.Version, found.Hash, layoutVersion, cutLayoutVersion, layoutHash)
	}
	if cut := found.EpochCells; (found.Version == cutLayoutVersion) != (cut != 0) || cut < 0 {
		return layoutRecord{}, fmt.Errorf("%w has version %d and %d cells in an epoch", ErrBadLayout, found.Version, cut)
	}
	tiers, err := ParseTiers(found.Tiers)
	if err != nil {
		return layoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	layout := Layout{Tiers: tiers.Cut(found.EpochCells), Shards: found.Shards}
	if err := layout.validate(); err != nil {
		return layoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	if found.EpochCells > 0 && layout.Tiers.cut() == 0 {
		return layoutRecord{}, fmt.Errorf("%w has %d cells in an epoch, and no tier has more", ErrBadLayout, found.EpochCells)
	}
	return layoutRecord{layout, found.ID}, nil
}
