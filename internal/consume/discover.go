package consume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/boot"
)

// discoverEvery is how often the worker looks for streams, whatever the advisories say.
const discoverEvery = time.Second

// discover finds out which streams exist, and tells the fleet. At the first look
// it makes the streams that are missing.
func (w *worker) discover(ctx context.Context) error {
	all, err := w.list(ctx)
	if err != nil {
		return err
	}
	if w.known == nil {
		if err := w.refuseRetention(ctx, all); err != nil {
			return err
		}
		w.sayIdle(ctx, all)
		made, err := w.create(ctx, w.wanting(all))
		if err != nil {
			return err
		}
		w.connects = w.js.Conn().Stats().Reconnects
		all = append(all, made...)
	} else if all, err = w.remake(ctx, all); err != nil {
		return err
	}
	w.fleet.Read(w.reads()) // the rules may have been reloaded
	listed, err := w.store.Streams(ctx)
	if err == nil {
		w.recall(all, listed)
		err = w.enlist(ctx, all)
	}
	if err != nil && ctx.Err() == nil {
		w.log.Debug().Err(err).Msg("not every stream is listed yet")
	}
	w.mu.Lock()
	for _, name := range all {
		delete(w.absent, name)
	}
	w.mu.Unlock()
	w.known = append(all, w.unlisted(ctx, all, listed)...)
	w.fleet.Exist(w.known)
	w.forgetMetrics()
	w.probe(ctx, all)
	w.judgeRules(all)
	return nil
}

// bareFor is how long the own streams must be missing after NATS has come back, before they are made again: a cluster
// lists its streams one after the other.
const bareFor = 5 * time.Second

// remake makes the worker's own streams again if NATS has come back without them: it has lost its store. A stream
// that somebody deletes while NATS is there stays deleted until a worker starts.
func (w *worker) remake(ctx context.Context, all []string) ([]string, error) {
	missing, connects := w.wanting(all), w.js.Conn().Stats().Reconnects
	switch {
	case len(missing) == 0:
		w.connects, w.bareSince = connects, time.Time{}
		return all, nil
	case connects == w.connects:
		return all, nil
	case w.bareSince.IsZero():
		w.bareSince = time.Now()
	}
	if time.Since(w.bareSince) < bareFor {
		return all, nil
	}
	w.log.Error().Strs("streams", slices.Sorted(maps.Keys(missing))).Msg("NATS has come back without these streams and what was in them: they are made again")
	made, err := w.create(ctx, missing)
	return append(all, made...), err
}

// refuseRetention refuses to start beside a stream that cannot be counted. If one becomes so later, it stands still.
func (w *worker) refuseRetention(ctx context.Context, all []string) error {
	for _, name := range all {
		if !w.settings.Streams.Match(name) {
			continue
		}
		handle, err := w.js.Stream(ctx, name)
		if err == nil && handle.CachedInfo().Config.Retention != jetstream.LimitsPolicy {
			return boot.UsageError{Err: fmt.Errorf("stream %s: %w", name, errRetention)}
		}
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("look at stream %s: %w", name, err)
		}
	}
	return nil
}

// forgetMetrics removes the series of streams that are gone.
func (w *worker) forgetMetrics() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.counted {
		if w.open[name] == nil && !slices.Contains(w.known, name) {
			w.metrics.forget(name)
			delete(w.counted, name)
		}
	}
}

// list names all streams that exist: other workers may read other streams than this one.
func (w *worker) list(ctx context.Context) ([]string, error) {
	all := []string{}
	list := w.js.StreamNames(ctx)
	for name := range list.Name() {
		all = append(all, name)
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list streams: %w", err)
	}
	return all, nil
}

// wanting returns the subjects of the streams to make, by stream name. If no stream matches,
// these are HITS, or HITS_0… if INGEST_PARTITIONS asks for several. If some of HITS_0… exist, these
// are the missing ones: the worker that was making them died before the last one, or somebody has
// raised INGEST_PARTITIONS.
func (w *worker) wanting(all []string) map[string]string {
	own := w.own()
	if !slices.ContainsFunc(all, w.settings.Streams.Match) {
		return own
	}
	if len(own) == 1 || !slices.ContainsFunc(all, func(name string) bool { return own[name] != "" }) {
		return nil // only one stream was asked for, or none of the existing ones is a partition
	}
	maps.DeleteFunc(own, func(name, _ string) bool { return slices.Contains(all, name) || !w.settings.Streams.Match(name) })
	return own
}

// own returns the subjects of the streams that a worker makes, by stream name.
func (w *worker) own() map[string]string {
	n := w.settings.Partitions
	if n == 1 {
		return map[string]string{"HITS": w.settings.Subject}
	}
	subjects := make(map[string]string, n)
	for i := range n {
		subjects[fmt.Sprintf("HITS_%d", i)] = fmt.Sprintf("hitp.%d.>", i)
	}
	return subjects
}

// create makes streams. Another worker may have made them first.
func (w *worker) create(ctx context.Context, subjects map[string]string) ([]string, error) {
	for name := range subjects {
		if !w.settings.Streams.Match(name) {
			return nil, &boot.SettingError{Key: "INGEST_STREAMS", Value: w.settings.Streams.String(),
				Allowed: fmt.Sprintf("names of existing streams, or globs that match the new stream %s", name)}
		}
	}
	var names []string
	for name, subject := range subjects {
		_, err := w.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{subject},
			Replicas: w.settings.Replicas, MaxAge: w.settings.MaxAge,
		})
		if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return nil, w.uncreated(ctx, name, subject, err)
		}
		w.log.Info().Str("stream", name).Str("subject", subject).Stringer("max_age", w.settings.MaxAge).Int("replicas", w.settings.Replicas).Msg("stream created")
		names = append(names, name)
	}
	return names, nil
}
