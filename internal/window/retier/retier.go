package retier

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/internal/window/schema"
)

// Error means that a change of tiers cannot be made now. Its text says what to do.
type Error struct{ text string }

func (e *Error) Error() string { return e.text }

// Progress receives the number of counters built, cursors moved or keys deleted so far.
type Progress func(what string, done int)

// Built is a tier after a change.
type Built struct {
	Tier window.Tier
	// CompleteFrom is the moment (Unix ms) from which its cells lack nothing of the old; 0: nothing at all.
	CompleteFrom int64
}

// Run changes the tiers of a namespace in which no worker counts. After an interruption, call it with the
// same tiers to go on, or with the old ones to abandon the change. changed is false if the tiers stay the
// same.
func Run(ctx context.Context, s *schema.Store, tiers window.Tiers, tell Progress) (built []Built, changed bool,
	err error) {
	have, err := s.ReadLayout(ctx)
	if err == nil && have.Change != nil && have.Change.Phase == schema.Confirmed {
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
		next := tiers.InGeneration(have.Tiers[0].Generation + 1)
		have, err = setChange(ctx, s, have, have.Tiers, &schema.Change{Phase: schema.Building, Other: next})
		if err != nil {
			return nil, false, err
		}
	// no worker may count before all that was built is gone: the next change builds there
	case have.Change.Phase == schema.Building && same && !have.Change.Other.AnswersLike(tiers):
		if have, err = endChange(ctx, s, have, tell); err != nil {
			return nil, false, err
		}
		return builtOf(have.Tiers), false, nil
	case have.Change.Phase == schema.Switched && same:
		return builtOf(have.Tiers), false, nil
	case have.Change.Phase == schema.Switched || !have.Change.Other.AnswersLike(tiers):
		return nil, false, otherChange(s, have)
	}
	target := have.Change.Other
	if err := fenceAll(ctx, s, have.Layout, tell); err != nil {
		return nil, false, err
	}
	if target, err = rebuild(ctx, s, have.Layout, target, tell); err != nil {
		return nil, false, err
	}
	if _, err = setChange(ctx, s, have, target, &schema.Change{Phase: schema.Switched, Other: have.Tiers}); err != nil {
		return nil, false, err
	}
	return builtOf(target), true, nil
}

func builtOf(tiers window.Tiers) []Built {
	out := make([]Built, len(tiers))
	for i, t := range tiers {
		out[i] = Built{t, t.Since}
	}
	return out
}

// Confirm deletes what is left of the old tiers, and returns the new ones. Workers may count meanwhile.
func Confirm(ctx context.Context, s *schema.Store, tell Progress) (window.Tiers, error) {
	have, err := s.ReadLayout(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case have.Change == nil:
		return nil, &Error{fmt.Sprintf("there is no change of tiers to confirm: the namespace %q has %s",
			s.Keys.Namespace, have.Tiers)}
	case have.Change.Phase == schema.Switched:
		confirmed := &schema.Change{Phase: schema.Confirmed, Other: have.Change.Other}
		if have, err = setChange(ctx, s, have, have.Tiers, confirmed); err != nil {
			return nil, err
		}
	case have.Change.Phase == schema.Building:
		return nil, otherChange(s, have)
	}
	have, err = endChange(ctx, s, have, tell)
	return have.Tiers, err
}

// otherChange returns the error that says what an unfinished change needs first.
func otherChange(s *schema.Store, have schema.LayoutRecord) error {
	other := have.Change.Other
	if have.Change.Phase == schema.Building {
		return &Error{fmt.Sprintf("the tiers of the namespace %q are being changed to %s: run ingest --retier '%s' to "+
			"go on, or ingest --retier '%s' to keep the old tiers",
			s.Keys.Namespace, other, other, have.Tiers)}
	}
	return &Error{fmt.Sprintf("the tiers of the namespace %q were changed from %s: run ingest --retier confirm before "+
		"you change them again", s.Keys.Namespace, other)}
}

// endChange deletes what a confirmed or abandoned change has left, and returns the record.
func endChange(ctx context.Context, s *schema.Store, have schema.LayoutRecord, tell Progress) (schema.LayoutRecord,
	error) {
	if err := deleteGeneration(ctx, s, have.Change.Other[0].Generation, tell); err != nil {
		return have, err
	}
	return setChange(ctx, s, have, have.Tiers, nil)
}

func setChange(ctx context.Context, s *schema.Store, have schema.LayoutRecord, tiers window.Tiers,
	c *schema.Change) (schema.LayoutRecord, error) {
	next := have
	next.Tiers, next.Change = tiers, c
	return next, swapLayout(ctx, s, have, next)
}

// errLayoutChanged means that another process has written the layout record.
var errLayoutChanged = &Error{"the layout record has changed meanwhile: does another ingest --retier run? Wait for " +
	"its end, and run this one again"}

// swapLayout replaces the record have with next, and accepts next if it is there: an earlier reply may have
// been lost. If it fails, either may be there.
func swapLayout(ctx context.Context, s *schema.Store, have, next schema.LayoutRecord) error {
	key := s.Keys.Layout()
	err := s.Client.Watch(ctx, []string{key}, func(tx *cluster.WatchedTx) error {
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
		there, err := schema.ParseLayoutRecord(text) // another version may have written the same otherwise
		switch {
		case err != nil:
			return err
		case there.Encode() == next.Encode():
			return nil
		case there.Encode() != have.Encode():
			return errLayoutChanged
		}
		if err := s.CopyLayout(ctx, next); err != nil {
			return err
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
