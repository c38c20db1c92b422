package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/consume/fleet"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/window"
	"tallyroll/internal/window/retier"
	"tallyroll/internal/window/schema"
)

const (
	// quietFor is how long no worker may write before tiers are changed. Even an idle worker writes once per
	// second.
	quietFor = 3 * time.Second
	// fleetWithin bounds the request for live workers.
	fleetWithin = 5 * time.Second
	// logProgressEvery is how often the progress is logged.
	logProgressEvery = 2 * time.Second
)

// Retier changes the tiers of the settings' namespace. order is tiers, or confirm. It writes the result to
// out.
func Retier(ctx context.Context, settings Settings, order string, out io.Writer, log zerolog.Logger) error {
	client := settings.Redis.Logging(log).ClientOnConnect(schema.RewriteTorn(func(error) {}))
	defer client.Close()
	if err := redisconn.Await(ctx, client, log); err != nil {
		return err
	}
	r := retiering{settings, schema.NewStore(client, settings.Redis.Namespace), out, log}
	err := redisconn.Explain(r.run(ctx, order))
	var refused *retier.Error
	if errors.As(err, &refused) || errors.Is(err, schema.ErrNoLayout) || errors.Is(err, schema.ErrBadLayout) {
		return setting.UsageError{Err: err}
	}
	return err
}

type retiering struct {
	settings Settings
	store    *schema.Store
	out      io.Writer
	log      zerolog.Logger
}

func (r *retiering) run(ctx context.Context, order string) error {
	progress := r.progressLogger()
	if order == "confirm" {
		tiers, err := retier.Confirm(ctx, r.store, progress)
		if err == nil {
			r.printf("the namespace %s has the tiers %s; the old ones are deleted", r.settings.Redis.Namespace, tiers)
		}
		return err
	}
	tiers, err := window.ParseTiers(order)
	if err != nil {
		return setting.BadUsage("--retier: must be cell/window pairs such as 1s/1m,1m/1h, or confirm: %w", err)
	}
	layout := r.settings.layout
	layout.Tiers = tiers
	if err := r.settings.checkCommands(layout); err != nil {
		return err
	}
	if err := r.checkNoWorkers(ctx); err != nil {
		return err
	}
	built, changed, err := retier.Run(ctx, r.store, tiers, progress)
	if err != nil {
		return err
	}
	if !changed {
		r.printf("the namespace %s keeps the tiers %s", r.settings.Redis.Namespace, tiers)
		return nil
	}
	r.printf("the namespace %s has the tiers %s", r.settings.Redis.Namespace, tiers)
	for _, b := range built {
		if b.CompleteFrom == 0 {
			r.printf("  %s: as complete as before", b.Tier)
		} else {
			r.printf("  %s: complete from %s on; answers that reach further back have complete: false", b.Tier,
				window.Moment(b.CompleteFrom))
		}
	}
	r.printf("start the workers with TIERS unset, or set to these. Then run ingest --retier confirm, which deletes " +
		"the old tiers")
	return nil
}

func (r *retiering) printf(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

func (r *retiering) progressLogger() retier.Progress {
	var loggedAt time.Time
	return func(what string, done int) {
		if time.Since(loggedAt) > logProgressEvery {
			loggedAt = time.Now()
			r.log.Info().Int(strings.ReplaceAll(what, " ", "_"), done).Msg("changing tiers")
		}
	}
}

// checkNoWorkers returns an error if a worker is running. It helps the operator: the layout record and the
// cursors ensure that nothing is counted while tiers are changed.
func (r *retiering) checkNoWorkers(ctx context.Context) error {
	_, id, err := r.store.Identify(ctx)
	if err != nil {
		return err
	}
	moves, err := retier.Moves(ctx, r.store, quietFor)
	if err != nil {
		return err
	}
	names, err := r.liveWorkers(ctx, id)
	if err != nil {
		r.log.Warn().Err(err).Msg("the workers could not be listed in NATS: checking only Redis")
	}
	if moves && len(names) == 0 {
		names = []string{"name unknown"}
	}
	if len(names) > 0 {
		return setting.BadUsage("the namespace %s has running workers (%s): stop all of them, and run this again some "+
			"seconds later", r.settings.Redis.Namespace, strings.Join(names, ", "))
	}
	return nil
}

func (r *retiering) liveWorkers(ctx context.Context, id string) ([]string, error) {
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
