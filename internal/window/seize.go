package window

import (
	"context"
	"fmt"
	"slices"
)

// Check reports whether this writer may still go on from the cursor: nil, ErrFenced, ErrRewound, or what
// Redis says. It writes nothing.
func (w *Writer) Check(ctx context.Context) error {
	found, exists, err := recordFrom(w.key, w.store.client.HMGet(ctx, w.key, slices.Clone(cursorFields)...))
	if err == nil {
		err = w.compare(found, exists)
	}
	if err != nil {
		return fmt.Errorf("look at cursor %s: %w", w.key, err)
	}
	return nil
}

// Seize fences every other writer of the cursor, and leaves the cursor where it is. It fails like Commit.
// If there is no cursor, there is nobody to fence.
func (w *Writer) Seize(ctx context.Context) error {
	if !w.exists {
		return nil
	}
	next := w.held
	next.by = w.id
	_, err := w.commit(ctx, NewBatch(w.layout).Shard(w.shard), next)
	return err
}
