package consume

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// sweepEvery is the time between two looks for texts of rules that no cursor names any more. Two looks in a
// row have to find none: a text is written before the cursor that names it.
const sweepEvery = time.Hour

// sweep removes the texts that no cursor of any listed stream has named for two looks. If a session names
// one of them again in that instant, it writes the text again after its cursors.
func (w *worker) sweep(ctx context.Context) error {
	kept, err := w.store.RulesKept(ctx)
	if err != nil || len(kept) == 0 {
		w.unnamed = nil
		return err
	}
	streams, err := w.store.Streams(ctx)
	if err != nil {
		return err
	}
	named := make(map[string]bool)
	for stream := range streams {
		cursors, err := w.cursors(ctx, stream)
		if err != nil {
			return err
		}
		if err := namedRules(cursors, named); err != nil {
			return fmt.Errorf("stream %s: %w", stream, err)
		}
	}
	var drop []string
	unnamed := slices.DeleteFunc(kept, func(fingerprint string) bool { return named[fingerprint] })
	for _, fingerprint := range unnamed {
		if slices.Contains(w.unnamed, fingerprint) {
			drop = append(drop, fingerprint)
		}
	}
	w.unnamed = unnamed
	if len(drop) == 0 {
		return nil
	}
	if err := w.store.DropRules(ctx, drop); err != nil {
		return err
	}
	w.log.Info().Strs("rules", drop).Msg("rules removed from Redis: no cursor names them any more")
	return nil
}

// keepSwept looks again and again until ctx ends. It owns unnamed.
func (w *worker) keepSwept(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := w.sweep(ctx); err != nil && ctx.Err() == nil {
			w.log.Debug().Err(err).Msg("texts of rules that no cursor names may be left in Redis")
		}
	}
}
