package window

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
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

type Change struct {
	Phase phase
	Other Tiers
}

type changeJSON struct {
	Phase phase `json:"phase"`
	tiersJSON
}

func (j *changeJSON) parse() (*Change, error) {
	if !slices.Contains([]phase{Building, Switched, Confirmed}, j.Phase) {
		return nil, fmt.Errorf("%w has a change of tiers that is %q, which this program does not know", ErrBadLayout, j.Phase)
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
	from, to  Tiers
}

func (e *RetieringError) Error() string {
	return fmt.Sprintf("the tiers of the namespace %q are being changed to %s, and nobody may count meanwhile: if no ingest --retier runs any more, run ingest --retier '%s' again to go on, or ingest --retier '%s' to keep the old tiers, and then start the workers",
		e.namespace, e.to, e.to, e.from)
}

// RetierError means that a change of tiers cannot be made now. Its text says what to do.
type RetierError struct{ text string }

func (e *RetierError) Error() string { return e.text }

// RetierProgress receives the number of counters built, cursors moved or keys deleted so far.
type RetierProgress func(what string, done int)

// Built is a tier after a change.
type Built struct {
	Tier Tier
	// CompleteFrom is the moment (Unix ms) from which its cells lack nothing of the old; 0: nothing at all.
	CompleteFrom int64
}

// InGeneration returns the tiers with keys of a generation, complete.
func (ts Tiers) InGeneration(generation int) Tiers {
	out := slices.Clone(ts)
	for i := range out {
		out[i].Generation, out[i].Since = generation, 0
	}
	return out
}

// Retier changes the tiers of a namespace in which no worker counts. After an interruption, call it with the
// same tiers to go on, or with the old ones to abandon the change. changed is false if the tiers stay the
// same.
func Retier(ctx context.Context, s *Store, tiers Tiers, tell RetierProgress) (built []Built, changed bool, err error) {
	have, err := s.ReadLayout(ctx)
	if err == nil && have.Change != nil && have.Change.Phase == Confirmed {
		have, err = endChange(ctx, s, have, tell)
	}
	if err != nil {
		return nil, false, err
	}
	same := have.Tiers.AnswersLike(tiers)
	switch {
	case have.Change == nil && same:
		return builtOf(have.Tiers), false, nil
	case have.Change == nil:
		if have, err = setChange(ctx, s, have, have.Tiers, &Change{Building, tiers.InGeneration(have.Tiers[0].Generation + 1)}); err != nil {
			return nil, false, err
		}
	case have.Change.Phase == Building && same: // no worker may count before all that was built is gone: the next change builds there
		if have, err = endChange(ctx, s, have, tell); err != nil {
			return nil, false, err
		}
		return builtOf(have.Tiers), false, nil
	case have.Change.Phase == Switched && same:
		return builtOf(have.Tiers), false, nil
	case have.Change.Phase == Switched || !have.Change.Other.AnswersLike(tiers):
		return nil, false, inTheWay(s, have)
	}
	target := have.Change.Other
	if err := fenceAll(ctx, s, have.Layout, tell); err != nil {
		return nil, false, err
	}
	if target, err = rebuild(ctx, s, have.Layout, target, tell); err != nil {
		return nil, false, err
	}
	if _, err = setChange(ctx, s, have, target, &Change{Switched, have.Tiers}); err != nil {
		return nil, false, err
	}
	return builtOf(target), true, nil
}

func builtOf(tiers Tiers) []Built {
	out := make([]Built, len(tiers))
	for i, t := range tiers {
		out[i] = Built{t, t.Since}
	}
	return out
}

// RetierConfirm deletes what is left of the old tiers, and returns the new ones. Workers may count meanwhile.
func RetierConfirm(ctx context.Context, s *Store, tell RetierProgress) (Tiers, error) {
	have, err := s.ReadLayout(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case have.Change == nil:
		return nil, &RetierError{fmt.Sprintf("there is no change of tiers to confirm: the namespace %q has %s", s.Keys.Namespace, have.Tiers)}
	case have.Change.Phase == Switched:
		if have, err = setChange(ctx, s, have, have.Tiers, &Change{Confirmed, have.Change.Other}); err != nil {
			return nil, err
		}
	case have.Change.Phase == Building:
		return nil, inTheWay(s, have)
	}
	have, err = endChange(ctx, s, have, tell)
	return have.Tiers, err
}

// inTheWay returns the error that says what an unfinished change needs first.
func inTheWay(s *Store, have LayoutRecord) error {
	other := have.Change.Other
	if have.Change.Phase == Building {
		return &RetierError{fmt.Sprintf("the tiers of the namespace %q are being changed to %s: run ingest --retier '%s' to go on, or ingest --retier '%s' to keep the old tiers",
			s.Keys.Namespace, other, other, have.Tiers)}
	}
	return &RetierError{fmt.Sprintf("the tiers of the namespace %q were changed from %s: run ingest --retier confirm before you change them again", s.Keys.Namespace, other)}
}

// endChange deletes what a confirmed or abandoned change has left, and returns the record.
func endChange(ctx context.Context, s *Store, have LayoutRecord, tell RetierProgress) (LayoutRecord, error) {
	if err := deleteGeneration(ctx, s, have.Change.Other[0].Generation, tell); err != nil {
		return have, err
	}
	return setChange(ctx, s, have, have.Tiers, nil)
}

func setChange(ctx context.Context, s *Store, have LayoutRecord, tiers Tiers, c *Change) (LayoutRecord, error) {
	next := have
	next.Tiers, next.Change = tiers, c
	return next, swapLayout(ctx, s, have, next)
}

// errLayoutChanged means that another process has written the layout record.
var errLayoutChanged = &RetierError{"the layout record has changed meanwhile: does another ingest --retier run? Wait for its end, and run this one again"}

// swapLayout replaces the record have with next. If it fails, either may be there.
func swapLayout(ctx context.Context, s *Store, have, next LayoutRecord) error {
	key := s.Keys.Layout()
	err := s.Client.Watch(ctx, []string{key}, func(tx *WatchedTx) error {
		var found *redis.StringCmd
		if err := tx.Read(ctx, func(p redis.Pipeliner) { found = p.Get(ctx, key) }); err != nil {
			return err
		}
		text, err := found.Result()
		if errors.Is(err, redis.Nil) {
			return errLayoutChanged
		}
		if err != nil {
			return err
		}
		there, err := ParseLayoutRecord(text) // another version may have written the same otherwise
		switch {
		case err != nil:
			return err
		case there.Encode() == next.Encode():
			return nil
		case there.Encode() != have.Encode():
			return errLayoutChanged
		}
		_, err = tx.Exec(ctx, func(p redis.Pipeliner) { p.Set(ctx, key, next.Encode(), 0) })
		return err
	})
	if errors.Is(err, redis.TxFailedErr) {
		return errLayoutChanged
	}
	if err != nil {
		return fmt.Errorf("write layout of %s: %w", s.Keys.Namespace, err)
	}
	return nil
}

// newMark returns a value for record.by that no writer has.
func newMark() string { return "retier-" + rand.Text()[:12] }
