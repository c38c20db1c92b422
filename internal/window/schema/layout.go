package schema

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"tallyroll/internal/window"
)

// ErrBadLayout means that this program cannot read the layout record: another version or program wrote it.
var ErrBadLayout = errors.New("layout record")

// LayoutRecord is the layout as Redis keeps it.
type LayoutRecord struct {
	window.Layout
	id     string  // see Store.ID
	Change *Change // nil if no change of the tiers is under way
}

type layoutJSON struct {
	Version int `json:"version"`
	tiersJSON
	// UniqueTiers are as ParseUniqueTiers reads them, and empty for recordUniqueTiers.
	UniqueTiers string `json:"unique_tiers,omitempty"`
	// UniquesListed says that all counters with unique values are listed. It always is.
	UniquesListed bool        `json:"uniques_listed,omitempty"`
	Shards        int         `json:"shards"`
	Hash          string      `json:"hash"` // of counters
	ID            string      `json:"id"`
	Change        *changeJSON `json:"retier,omitempty"`
}

// recordUniqueTiers are those of a record that names none. They stay, whatever DefaultUniqueTiers become.
const recordUniqueTiers = "5m/1h,1h/1d,1d/32d"

type tiersJSON struct {
	Tiers string `json:"tiers"`
	// EpochCells is the most cells that a hash spans. A program with another EpochCells goes on with it.
	EpochCells int64 `json:"epoch_cells"`
	Generation int   `json:"generation,omitempty"`
	// CompleteFrom has Tier.Since for each tier. It is empty if no tier lacks hits.
	CompleteFrom []int64 `json:"complete_from,omitempty"`
}

// Version 2 has a generation or a change. Programs that do not know these must not read or count by it.
const layoutVersion, ChangedVersion, LayoutHash = 1, 2, "xxhash64"

func tiersToJSON(ts window.Tiers) tiersJSON {
	out := tiersJSON{Tiers: ts.String(), EpochCells: ts.EpochCells(), Generation: ts[0].Generation}
	for _, t := range ts {
		out.CompleteFrom = append(out.CompleteFrom, t.Since)
	}
	if out.Generation == 0 {
		out.CompleteFrom = nil
	}
	return out
}

func (j tiersJSON) parse() (window.Tiers, error) {
	if j.EpochCells < 1 {
		return nil, fmt.Errorf("%w has %d cells in an epoch", ErrBadLayout, j.EpochCells)
	}
	tiers, err := window.ParseTiers(j.Tiers)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	if j.Generation < 0 || len(j.CompleteFrom) > 0 && len(j.CompleteFrom) != len(tiers) {
		return nil, fmt.Errorf("%w has generation %d and %d moments for %d tiers", ErrBadLayout, j.Generation,
			len(j.CompleteFrom), len(tiers))
	}
	tiers = tiers.Cut(j.EpochCells).InGeneration(j.Generation)
	for i, since := range j.CompleteFrom {
		if tiers[i].Since = since; !window.IsMoment(since) || tiers[i].CellStart(tiers[i].CellAt(since)) != since {
			return nil, fmt.Errorf("%w says that the tier %s is complete from %d, where none of its cells begins",
				ErrBadLayout, tiers[i], since)
		}
	}
	return tiers, nil
}

func (r LayoutRecord) Encode() string {
	record := layoutJSON{
		Version: layoutVersion, tiersJSON: tiersToJSON(r.Tiers), UniqueTiers: window.FormatUniqueTiers(r.UniqueTiers),
		UniquesListed: len(r.UniqueTiers) > 0, Shards: r.Shards, Hash: LayoutHash, ID: r.id,
	}
	if record.UniqueTiers == recordUniqueTiers {
		record.UniqueTiers = "" // as versions write it that do not know them
	}
	if r.Change != nil {
		record.Change = &changeJSON{Phase: r.Change.Phase, tiersJSON: tiersToJSON(r.Change.Other)}
	}
	if record.Generation > 0 || record.Change != nil {
		record.Version = ChangedVersion
	}
	out, err := json.Marshal(record)
	if err != nil {
		panic(err) // strings and integers always encode
	}
	return string(out)
}

// ParseLayoutRecord parses what encode wrote. Its errors are ErrBadLayout.
func ParseLayoutRecord(text string) (LayoutRecord, error) {
	var found layoutJSON
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return LayoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	if found.Version != layoutVersion && found.Version != ChangedVersion || found.Hash != LayoutHash {
		return LayoutRecord{}, fmt.Errorf("%w has version %d and hash %q, and this program reads versions %d and %d "+
			"and %s: run the release of Tallyroll that made the namespace, or set another TALLYROLL_NAMESPACE",
			ErrBadLayout, found.Version, found.Hash, layoutVersion, ChangedVersion, LayoutHash)
	}
	tiers, err := found.tiersJSON.parse()
	if err != nil {
		return LayoutRecord{}, err
	}
	uniqueTiers, err := window.ParseUniqueTiers(cmp.Or(found.UniqueTiers, recordUniqueTiers))
	if err != nil {
		return LayoutRecord{}, fmt.Errorf("%w: unique tiers: %w", ErrBadLayout, err)
	}
	out := LayoutRecord{Layout: window.Layout{Tiers: tiers, UniqueTiers: uniqueTiers, Shards: found.Shards},
		id: found.ID}
	if err := window.ValidateLayout(out.Layout); err != nil {
		return LayoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	if found.Change != nil {
		if out.Change, err = found.Change.parse(); err != nil {
			return LayoutRecord{}, err
		}
	}
	return out, nil
}
