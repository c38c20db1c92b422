package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/consume"
	"tallyroll/internal/consume/source"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/rejects"
)

// ownStreams creates the streams of this worker's settings. Only the worker's goroutine uses it.
type ownStreams struct {
	settings     Settings
	js           jetstream.JetStream
	log          zerolog.Logger
	reconnects   uint64    // how often NATS had been reconnected when the streams existed last
	missingSince time.Time // since when they have been missing after a reconnect
}

// createAtStart creates the missing streams at start, and returns those that then exist.
func (o *ownStreams) createAtStart(ctx context.Context, all []string) ([]string, error) {
	if err := o.checkCountable(ctx, all); err != nil {
		return nil, err
	}
	o.warnUnusedSettings(ctx, all)
	created, err := o.create(ctx, o.missingSubjects(all))
	if err != nil {
		return nil, err
	}
	o.reconnects = o.js.Conn().Stats().Reconnects
	return append(all, created...), nil
}

func (o *ownStreams) createRejects(ctx context.Context) error {
	return rejects.Create(ctx, o.js, o.settings.Replicas, o.settings.MaxAge)
}

// missingFor is how long the own streams must be missing after a reconnect before they are recreated: a
// cluster lists its streams one after the other.
const missingFor = 5 * time.Second

// recreateLost recreates the worker's own streams if they are missing after a reconnect, because NATS has
// lost its store. A stream that is deleted while NATS is connected stays deleted until a worker starts.
func (o *ownStreams) recreateLost(ctx context.Context, all []string) ([]string, error) {
	missing, connects := o.missingSubjects(all), o.js.Conn().Stats().Reconnects
	switch {
	case len(missing) == 0:
		o.reconnects, o.missingSince = connects, time.Time{}
		return all, nil
	case connects == o.reconnects:
		return all, nil
	case o.missingSince.IsZero():
		o.missingSince = time.Now()
	}
	if time.Since(o.missingSince) < missingFor {
		return all, nil
	}
	o.log.Error().Strs("streams", slices.Sorted(maps.Keys(missing))).
		Msg("NATS has lost these streams and their hits: they are recreated, empty")
	created, err := o.create(ctx, missing)
	return append(all, created...), err
}

// checkCountable refuses to start if a stream cannot be counted. A stream that becomes so later stands still.
func (o *ownStreams) checkCountable(ctx context.Context, all []string) error {
	for _, name := range all {
		if !o.settings.Streams.Match(name) {
			continue
		}
		handle, err := o.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("get the info of stream %s: %w", name, err)
		}
		config := handle.CachedInfo().Config
		if err := consume.Refused(source.State{Retention: config.Retention}); err != nil {
			return setting.UsageError{Err: fmt.Errorf("stream %s: %w", name, err)}
		}
	}
	return nil
}

// missingSubjects returns the subjects of the streams to create, by stream name. If no stream matches, these
// are HITS, or HITS_0… if INGEST_PARTITIONS is more than 1. If some of HITS_0… exist, these are the missing
// ones: a worker died while it created them, or INGEST_PARTITIONS was increased.
func (o *ownStreams) missingSubjects(all []string) map[string]string {
	own := o.subjects()
	if !slices.ContainsFunc(all, o.settings.Streams.Match) {
		return own
	}
	if len(own) == 1 || !slices.ContainsFunc(all, func(name string) bool { return own[name] != "" }) {
		return nil // INGEST_PARTITIONS is 1, or no existing stream is a partition
	}
	maps.DeleteFunc(own, func(name, _ string) bool {
		return slices.Contains(all, name) || !o.settings.Streams.Match(name)
	})
	return own
}

func (o *ownStreams) subjects() map[string]string {
	n := o.settings.Partitions
	if n == 1 {
		return map[string]string{"HITS": o.settings.Subject}
	}
	subjects := make(map[string]string, n)
	for i := range n {
		subjects[fmt.Sprintf("HITS_%d", i)] = fmt.Sprintf("hitp.%d.>", i)
	}
	return subjects
}

// create creates streams. Another worker may have created them first.
func (o *ownStreams) create(ctx context.Context, subjects map[string]string) ([]string, error) {
	for name := range subjects {
		if !o.settings.Streams.Match(name) {
			return nil, &setting.Error{Key: "INGEST_STREAMS", Value: o.settings.Streams.String(),
				MustBe: fmt.Sprintf("names of existing streams, or globs that match the new stream %s", name)}
		}
	}
	var names []string
	for name, subject := range subjects {
		_, err := o.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{subject},
			Replicas: o.settings.Replicas, MaxAge: o.settings.MaxAge,
		})
		if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return nil, o.createError(ctx, name, subject, err)
		}
		o.log.Info().Str("stream", name).Str("subject", subject).Stringer("max_age", o.settings.MaxAge).Int("replicas",
			o.settings.Replicas).Msg("stream created")
		names = append(names, name)
	}
	return names, nil
}

// warnUnusedSettings warns of settings that have no effect, because the streams exist.
func (o *ownStreams) warnUnusedSettings(ctx context.Context, all []string) {
	own, s := o.subjects(), o.settings
	read := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !s.Streams.Match(name) })
	if len(read) == 0 {
		return
	}
	warn := func(name string, value any, cause string) {
		o.log.Warn().Strs("streams", read).Msgf("%s=%v has no effect: %s", name, value, cause)
	}
	existing := slices.DeleteFunc(slices.Clone(read), func(name string) bool { return own[name] == "" })
	if s.Partitions > 1 && len(existing) == 0 {
		warn("INGEST_PARTITIONS", s.Partitions, "streams are created only if none matches INGEST_STREAMS; "+
			"docs/scaling.md describes how to change to several (create HITS_0 by hand, and the next start creates "+
			"the others)")
	}
	if s.Partitions == 1 && len(existing) == 0 && s.SubjectGiven {
		warn("INGEST_SUBJECT", s.Subject, "only for the stream HITS, which is created only if no stream matches "+
			"INGEST_STREAMS")
	}
	for _, name := range existing {
		infoCtx, cancel := context.WithTimeout(ctx, source.CheckWithin)
		handle, err := o.js.Stream(infoCtx, name)
		cancel()
		if err != nil {
			continue // other log lines report this
		}
		config := handle.CachedInfo().Config
		if s.Partitions == 1 && s.SubjectGiven && !slices.Contains(config.Subjects, s.Subject) {
			warn("INGEST_SUBJECT", s.Subject, fmt.Sprintf("the stream %s exists, on %s; change it with: nats "+
				"stream edit %s", name, strings.Join(config.Subjects, ", "), name))
		}
		if config.Replicas != s.Replicas && s.ReplicasGiven {
			warn("INGEST_REPLICAS", s.Replicas, fmt.Sprintf("the stream %s exists, with %d; change it with: nats "+
				"stream edit %s --replicas %d", name, config.Replicas, name, s.Replicas))
		}
		if config.MaxAge != s.MaxAge && s.MaxAgeGiven {
			warn("INGEST_MAX_AGE", s.MaxAge, fmt.Sprintf("the stream %s exists, and keeps hits for %s; change it "+
				"with: nats stream edit %s --max-age %s", name, human.Duration(config.MaxAge), name, s.MaxAge))
		}
	}
}

// JetStream's error codes for a stream that cannot be created as requested.
const (
	// noPeers is "no suitable peers for placement": suitable servers may still come up.
	noPeers jetstream.ErrorCode = 10005
	// noReplicas is for more than one replica without a cluster.
	noReplicas jetstream.ErrorCode = 10074
	// subjectsOverlap means that another stream has some of the subjects.
	subjectsOverlap jetstream.ErrorCode = 10065
	// invalidConfig means invalid subjects: everything else has been validated.
	invalidConfig jetstream.ErrorCode = 10052
)

// serversWithin bounds the wait at start for enough servers for a stream's replicas: a cluster may be
// starting.
const serversWithin = time.Minute

// createError turns a permanent error of JetStream into one that names the setting to change.
func (s *Settings) createError(err error) error {
	var answer *jetstream.APIError
	if !errors.As(err, &answer) {
		return err
	}
	switch answer.ErrorCode {
	case noPeers, noReplicas:
		return &setting.Error{Key: "INGEST_REPLICAS", Value: strconv.Itoa(s.Replicas),
			MustBe: fmt.Sprintf("at most the number of servers that NATS has for streams (%v)", err)}
	case subjectsOverlap:
		return setting.UsageError{Err: fmt.Errorf("%w: give that stream other subjects", err)}
	}
	return err
}

// createError returns the error for a stream that could not be created. It names the setting to change.
func (o *ownStreams) createError(ctx context.Context, name, subject string, err error) error {
	failed := fmt.Errorf("create stream %s on %s: %w", name, subject, err)
	var answer *jetstream.APIError
	if !errors.As(err, &answer) || answer.ErrorCode != subjectsOverlap && answer.ErrorCode != invalidConfig {
		return failed
	}
	if answer.ErrorCode == subjectsOverlap {
		for other := range o.js.StreamNames(ctx, jetstream.WithStreamListSubject(subject)).Name() {
			failed = fmt.Errorf("%w: %s", failed, other)
		}
	}
	if o.settings.Partitions > 1 {
		return &setting.Error{Key: "INGEST_PARTITIONS", Value: strconv.Itoa(o.settings.Partitions),
			MustBe: fmt.Sprintf("1, or more if no other stream has subjects of hitp.> (%v)", failed)}
	}
	return &setting.Error{Key: "INGEST_SUBJECT", Value: subject,
		MustBe: fmt.Sprintf("%s that overlaps with no other stream's subjects; to count another stream, name it in "+
			"INGEST_STREAMS (%v)", subjectForm, failed)}
}

// isTransient reports whether waiting can fix an error: a cluster returns such errors, or no reply, while it
// elects leaders or has too few servers.
func isTransient(err error) bool {
	var answer *jetstream.APIError
	if errors.As(err, &answer) {
		return answer.Code == http.StatusServiceUnavailable || answer.ErrorCode == noPeers
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, nats.ErrNoResponders)
}

// awaitLeader calls try until it succeeds or fails permanently. It logs the wait, which serversWithin bounds
// if too few servers are the cause.
func awaitLeader(ctx context.Context, log zerolog.Logger, try func(context.Context) error) (failed error) {
	began := time.Now()
	what := fmt.Sprintf("a leader of JetStream, and up to %v for enough servers", serversWithin)
	err := wait.Until(ctx, log, what, func(ctx context.Context) error {
		failed = try(ctx)
		var answer *jetstream.APIError
		if errors.As(failed, &answer) && answer.ErrorCode == noPeers && time.Since(began) > serversWithin {
			return nil
		}
		if isTransient(failed) {
			return failed
		}
		return nil
	})
	if err != nil {
		return err
	}
	return failed
}
