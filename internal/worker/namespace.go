package worker

import (
	"context"
	"errors"

	"github.com/rs/zerolog"

	"tallyroll/internal/redisconn"
	"tallyroll/internal/setting"
	"tallyroll/internal/window"
)

type namespace struct {
	settings Settings
	store    *window.Store
	log      zerolog.Logger
}

// open checks that Redis and the namespace are fit for counting, and returns the layout. It waits while Redis
// is away: a fail-over can begin at any time. A problem that only an operator can fix is an error at once.
func (n *namespace) open(ctx context.Context) (layout window.Layout, err error) {
	if err := redisconn.Ask(ctx, n.log, n.checkRedis); err != nil {
		return layout, err
	}
	err = redisconn.Ask(ctx, n.log, func(ctx context.Context) (err error) {
		layout, err = n.openLayout(ctx)
		var mismatch *window.LayoutMismatchError
		var retiering *window.RetieringError
		if errors.As(err, &mismatch) || errors.As(err, &retiering) || errors.Is(err, window.ErrBadLayout) {
			return setting.UsageError{Err: err}
		}
		return err
	})
	return layout, err
}

// openLayout creates the namespace with the settings, or continues it. Tiers and shards that are not set are
// the namespace's, so that it outlives a change of the defaults. Only a start takes them. A running worker
// keeps its tiers: if Redis has lost only the record, the counts are in the old tiers' hashes, and answers
// would neither read nor miss them.
func (n *namespace) openLayout(ctx context.Context) (window.Layout, error) {
	want := n.settings.layout
	if !n.settings.TiersGiven || !n.settings.UniqueTiersGiven || !n.settings.ShardsGiven { // a default may not be what the namespace was made with
		if err := n.store.CheckLayout(ctx); err != nil {
			return window.Layout{}, err
		}
	}
	layout, err := n.store.OpenLayout(ctx, want)
	var mismatch *window.LayoutMismatchError
	if errors.As(err, &mismatch) {
		layout, err = n.store.OpenLayout(ctx, n.settings.adopt(mismatch.Have))
	}
	if err != nil {
		return window.Layout{}, err
	}
	if mismatch != nil {
		n.log.Info().Stringer("tiers", layout.Tiers).Str("unique_tiers", window.FormatUniqueTiers(layout.UniqueTiers)).Int("shards", layout.Shards).
			Stringer("default_tiers", want.Tiers).Str("default_unique_tiers", window.FormatUniqueTiers(want.UniqueTiers)).Int("default_shards", want.Shards).
			Msg("going on with the tiers and shards of the namespace: it was made with others than this worker would take, and no setting asks for these")
	}
	return layout, n.settings.checkCommands(layout)
}

// checkRedis refuses a Redis whose settings break the promise. It logs what else is notable about the
// settings, once it has checked all servers.
func (n *namespace) checkRedis(ctx context.Context) error {
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
