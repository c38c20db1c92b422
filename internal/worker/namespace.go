package worker

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

type namespace struct {
	settings Settings
	store    *schema.Store
	log      zerolog.Logger
}

// restoredWithin is how long a running worker gets to write a lost layout record again. Tests shorten it.
var restoredWithin = 15 * time.Second

// open checks that Redis and the namespace can be used for counting, and returns the layout. It waits while
// Redis does not answer: a fail-over can begin at any time. A problem that only an operator can fix is an
// error at once.
func (n *namespace) open(ctx context.Context) (layout window.Layout, err error) {
	if err := redisconn.Retry(ctx, n.log, n.checkRedis); err != nil {
		return layout, err
	}
	var lost time.Time
	err = redisconn.Retry(ctx, n.log, func(ctx context.Context) (err error) {
		layout, err = n.openLayout(ctx)
		if !errors.Is(err, schema.ErrLayoutLost) {
			lost = time.Time{}
		} else if lost.IsZero() {
			lost = time.Now()
		} else if time.Since(lost) > restoredWithin {
			return setting.UsageError{Err: err}
		}
		var mismatch *schema.LayoutMismatchError
		var retiering *schema.RetieringError
		if errors.As(err, &mismatch) || errors.As(err, &retiering) || errors.Is(err, schema.ErrBadLayout) {
			return setting.UsageError{Err: err}
		}
		return err
	})
	return layout, err
}

// openLayout creates the namespace with the settings, or continues it. Tiers and shards that are not set are
// the namespace's, so that it outlives a change of the defaults. Only the start reads them. A running worker
// keeps its tiers: if Redis has lost only the record, the counts are in the old tiers' hashes, and answers
// would neither read nor miss them.
func (n *namespace) openLayout(ctx context.Context) (window.Layout, error) {
	wanted := n.settings.layout
	if err := n.store.RestoreLayout(ctx); err != nil {
		return window.Layout{}, err
	}
	layout, err := n.store.OpenLayout(ctx, wanted)
	var mismatch *schema.LayoutMismatchError
	if errors.As(err, &mismatch) {
		layout, err = n.store.OpenLayout(ctx, n.settings.mergeLayout(mismatch.Have))
	}
	if err != nil {
		return window.Layout{}, err
	}
	if mismatch != nil {
		n.log.Info().Stringer("tiers", layout.Tiers).Stringer("default_tiers", wanted.Tiers).
			Str("unique_tiers", window.FormatUniqueTiers(layout.UniqueTiers)).
			Str("default_unique_tiers", window.FormatUniqueTiers(wanted.UniqueTiers)).
			Int("shards", layout.Shards).Int("default_shards", wanted.Shards).
			Msg("using the tiers and shards of the namespace: they are not the defaults, and no setting gives others")
	}
	return layout, n.settings.checkCommands(layout)
}

// checkRedis refuses a Redis whose settings break the promise. It logs warnings about other settings, once it
// has checked all servers.
func (n *namespace) checkRedis(ctx context.Context) error {
	if err := n.store.Client.CheckTransactions(ctx, n.store.Keys.Layout()); err != nil {
		return err
	}
	warnings, err := n.store.Client.CheckServer(ctx)
	var eviction *window.EvictionError
	if err != nil && !errors.As(err, &eviction) {
		return err
	}
	for _, warning := range warnings {
		n.log.Warn().Msg(warning)
	}
	if eviction == nil {
		return nil
	}
	if !n.settings.AllowEviction {
		return setting.UsageError{Err: err}
	}
	n.log.Warn().Msg(err.Error())
	return nil
}
