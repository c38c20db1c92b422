package schema

import (
	"fmt"
	"slices"

	"tallyroll/internal/window"
)

// A change of tiers (Retier) builds all cells, names and summaries again, under the keys of another
// generation. It can be repeated or abandoned: no worker counts meanwhile, and old cells, and cursors except
// "by", do not change.

// phase is how far a change is. Answers come from the record's own tiers.
type phase string

const (
	Building  phase = "building"  // the record has the old tiers, and the change the new ones; no worker may count
	Switched  phase = "switched"  // the record has the new tiers, and the change the old ones; workers count
	Confirmed phase = "confirmed" // the record has the new tiers, and the keys of the old ones are being deleted
)

// Change is a change of tiers under way: its phase, and the tiers that the record does not answer with.
type Change struct {
	Phase phase
	Other window.Tiers
}

type changeJSON struct {
	Phase phase `json:"phase"`
	tiersJSON
}

func (j *changeJSON) parse() (*Change, error) {
	if !slices.Contains([]phase{Building, Switched, Confirmed}, j.Phase) {
		return nil, fmt.Errorf("%w has a change of tiers that is %q, which this program does not know", ErrBadLayout,
			j.Phase)
	}
	tiers, err := j.tiersJSON.parse()
	if err != nil {
		return nil, err
	}
	return &Change{j.Phase, tiers}, nil
}

func (c *Change) forbidsCounting() bool {
	return c != nil && c.Phase == Building
}

// RetieringError means that the tiers of a namespace are being changed, so no worker may count into it.
type RetieringError struct {
	namespace string
	from, to  window.Tiers
}

func (e *RetieringError) Error() string {
	return fmt.Sprintf("the tiers of the namespace %q are being changed to %s, and no worker may count meanwhile: if "+
		"no ingest --retier runs any more, run ingest --retier '%s' again to go on, or ingest --retier '%s' to keep "+
		"the old tiers, and then start the workers",
		e.namespace, e.to, e.to, e.from)
}
