package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/fleet"
	"tallyroll/internal/redisconn"
	"tallyroll/internal/setting"
	"tallyroll/internal/window"
)

const (
	// quietFor is how long no worker may count before tiers are changed. Workers write every second, even if
	// idle.
	quietFor = 3 * time.Second
	// fleetWithin bounds NATS's answer about live workers.
	fleetWithin = 5 * time.Second
	// tellEvery is how often a change of tiers logs its progress.
	tellEvery = 2 * time.Second
)

// Retier changes the tiers of the settings' namespace. order is tiers, or confirm. It writes the result to
// out.
func Retier(ctx context.Context, settings Settings, order string, out io.Writer, log zerolog.Logger) error {
	client := settings.Redis.Logging(log).ClientOnConnect(window.RewriteTorn(func(error) {}))
	defer client.Close()
	if err := redisconn.Await(ctx, client, log); err != nil {
		return err
	}
	r := retiering{settings, window.NewStore(client, settings.Redis.Namespace), out, log}
	err := r.do(ctx, order)
	var refused *window.RetierError
	if errors.As(err, &refused) || errors.Is(err, window.ErrNoLayout) || errors.Is(err, window.ErrBadLayout) {
		return setting.UsageError{Err: err}
	}
	return err
}

type retiering struct {
	settings Settings
	store    *window.Store
	out      io.Writer
	log      zerolog.Logger
}

func (r *retiering) do(ctx context.Context, order string) error {
	tell := r.teller()
	if order == "confirm" {
		tiers, err := window.RetierConfirm(ctx, r.store, tell)
		if err == nil {
			r.say("the namespace %s has the tiers %s; the old ones are deleted", r.settings.Redis.Namespace, tiers)
		}
		return err
	}
	tiers, err := window.ParseTiers(order)
	if err != nil {
		return setting.BadUsage("--retier: allowed are cell/window pairs such as 1s/1m,1m/1h, or confirm: %w", err)
	}
	layout := r.settings.layout
	layout.Tiers = tiers
	if err := r.settings.checkCommands(layout); err != nil {
		return err
	}
	if err := r.refuseWorkers(ctx); err != nil {
		return err
	}
	built, changed, err := window.Retier(ctx, r.store, tiers, tell)
	if err != nil {
		return err
	}
	if !changed {
		r.say("the namespace %s keeps the tiers %s", r.settings.Redis.Namespace, tiers)
		return nil
	}
	r.say("the namespace %s has the tiers %s", r.settings.Redis.Namespace, tiers)
	for _, b := range built {
		if b.CompleteFrom == 0 {
			r.say("  %s: as complete as before", b.Tier)
		} else {
			r.say("  %s: complete from %s on; answers that reach further back say complete: false", b.Tier, window.Moment(b.CompleteFrom))
		}
	}
	r.say("start the workers with TIERS unset, or set to these. Then run ingest --retier confirm, which deletes the old tiers")
	return nil
}

func (r *retiering) say(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

func (r *retiering) teller() window.RetierProgress {
	var told time.Time
	return func(what string, done int) {
		if time.Since(told) > tellEvery {
			told = time.Now()
			r.log.Info().Int(strings.ReplaceAll(what, " ", "_"), done).Msg("changing tiers")
		}
	}
}

// refuseWorkers returns an error if a worker lives, for the operator's sake: the layout record and the
// cursors ensure that nothing is counted while tiers are changed.
func (r *retiering) refuseWorkers(ctx context.Context) error {
	_, id, err := r.store.Identify(ctx)
	if err != nil {
		return err
	}
	moves, err := window.Moves(ctx, r.store, quietFor)
	if err != nil {
		return err
	}
	names, err := r.living(ctx, id)
	if err != nil {
		r.log.Warn().Err(err).Msg("NATS does not say which workers live: Redis alone is asked")
	}
	if moves && len(names) == 0 {
		names = []string{"one of unknown name"}
	}
	if len(names) > 0 {
		return setting.BadUsage("the namespace %s has living workers (%s): stop all of them, and run this again some seconds later", r.settings.Redis.Namespace, strings.Join(names, ", "))
	}
	return nil
}

func (r *retiering) living(ctx context.Context, id string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, fleetWithin)
	defer cancel()
	conn, err := r.settings.NATS.Connect(ctx, "ingest --retier", r.log)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	js, err := r.settings.NATS.JetStream(conn)
	if err != nil {
		return nil, err
	}
	workers, err := fleet.Workers(ctx, js, r.settings.Redis.Namespace, id)
	names := make([]string, len(workers))
	for i, w := range workers {
		names[i] = w.Name
	}
	return names, err
}
