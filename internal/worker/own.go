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
	"tallyroll/internal/human"
	"tallyroll/internal/rejects"
	"tallyroll/internal/retry"
	"tallyroll/internal/setting"
	"tallyroll/internal/source"
)

// ownStreams creates the streams of this worker's settings. Only the worker's goroutine uses it.
type ownStreams struct {
	settings  Settings
	js        jetstream.JetStream
	log       zerolog.Logger
	connects  uint64    // how often NATS had been reconnected when the streams existed last
	bareSince time.Time // since when they have been missing after a reconnect
}

// begin creates the missing streams at start, and returns those that then exist.
func (o *ownStreams) begin(ctx context.Context, all []string) ([]string, error) {
	if err := o.refuseStreams(ctx, all); err != nil {
		return nil, err
	}
	o.warnIdle(ctx, all)
	made, err := o.create(ctx, o.wanting(all))
	if err != nil {
		return nil, err
	}
	o.connects = o.js.Conn().Stats().Reconnects
	return append(all, made...), nil
}

func (o *ownStreams) createRejects(ctx context.Context) error {
	return rejects.Create(ctx, o.js, o.settings.Replicas, o.settings.MaxAge)
}

// bareFor is how long the own streams must be missing after a reconnect before they are recreated: a cluster
// lists its streams one after the other.
const bareFor = 5 * time.Second

// remake recreates the worker's own streams if they are missing after a reconnect, because NATS has lost its
// store. A stream that is deleted while NATS is connected stays deleted until a worker starts.
func (o *ownStreams) remake(ctx context.Context, all []string) ([]string, error) {
	missing, connects := o.wanting(all), o.js.Conn().Stats().Reconnects
	switch {
	case len(missing) == 0:
		o.connects, o.bareSince = connects, time.Time{}
		return all, nil
	case connects == o.connects:
		return all, nil
	case o.bareSince.IsZero():
		o.bareSince = time.Now()
	}
	if time.Since(o.bareSince) < bareFor {
		return all, nil
	}
	o.log.Error().Strs("streams", slices.Sorted(maps.Keys(missing))).
		Msg("NATS has lost these streams and their hits: they are recreated, empty")
	made, err := o.create(ctx, missing)
	return append(all, made...), err
}

// refuseStreams refuses to start if a stream cannot be counted. A stream that becomes so later stands still.
func (o *ownStreams) refuseStreams(ctx context.Context, all []string) error {
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
		if err := consume.Refused(source.State{Retention: config.Retention, Increments: config.AllowMsgCounter}); err != nil {
			return setting.UsageError{Err: fmt.Errorf("stream %s: %w", name, err)}
		}
	}
	return nil
}

// wanting returns the subjects of the streams to create, by stream name. If no stream matches, these are
// HITS, or HITS_0… if INGEST_PARTITIONS is more than 1. If some of HITS_0… exist, these are the missing ones:
// a worker died while it created them, or INGEST_PARTITIONS was increased.
func (o *ownStreams) wanting(all []string) map[string]string {
	own := o.subjects()
	if !slices.ContainsFunc(all, o.settings.Streams.Match) {
		return own
	}
	if len(own) == 1 || !slices.ContainsFunc(all, func(name string) bool { return own[name] != "" }) {
		return nil // INGEST_PARTITIONS is 1, or no existing stream is a partition
	}
	maps.DeleteFunc(own, func(name, _ string) bool { return slices.Contains(all, name) || !o.settings.Streams.Match(name) })
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
				Allowed: fmt.Sprintf("names of existing streams, or globs that match the new stream %s", name)}
		}
	}
	var names []string
	for name, subject := range subjects {
		_, err := o.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{subject},
			Replicas: o.settings.Replicas, MaxAge: o.settings.MaxAge,
		})
		if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return nil, o.uncreated(ctx, name, subject, err)
		}
		o.log.Info().Str("stream", name).Str("subject", subject).Stringer("max_age", o.settings.MaxAge).Int("replicas", o.settings.Replicas).Msg("stream created")
		names = append(names, name)
	}
	return names, nil
}

// warnIdle warns of settings that have no effect, because the streams exist.
func (o *ownStreams) warnIdle(ctx context.Context, all []string) {
	own, s := o.subjects(), o.settings
	read := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !s.Streams.Match(name) })
	if len(read) == 0 {
		return
	}
	idle := func(setting string, value any, why string) {
		o.log.Warn().Strs("streams", read).Msgf("%s=%v has no effect: %s", setting, value, why)
	}
	there := slices.DeleteFunc(slices.Clone(read), func(name string) bool { return own[name] == "" })
	if s.Partitions > 1 && len(there) == 0 {
		idle("INGEST_PARTITIONS", s.Partitions, "streams are created only if none matches INGEST_STREAMS; docs/scaling.md describes how to change to several (create HITS_0 by hand, and the next start creates the others)")
	}
	if s.Partitions == 1 && len(there) == 0 && s.SubjectGiven {
		idle("INGEST_SUBJECT", s.Subject, "it is the subject of the stream HITS, which is created only if no stream matches INGEST_STREAMS")
	}
	for _, name := range there {
		asking, cancel := context.WithTimeout(ctx, source.LookWithin)
		handle, err := o.js.Stream(asking, name)
		cancel()
		if err != nil {
			continue // other log lines report this
		}
		have := handle.CachedInfo().Config
		if s.Partitions == 1 && s.SubjectGiven && !slices.Contains(have.Subjects, s.Subject) {
			idle("INGEST_SUBJECT", s.Subject, fmt.Sprintf("the stream %s exists, on %s; change it with: nats stream edit %s", name, strings.Join(have.Subjects, ", "), name))
		}
		if have.Replicas != s.Replicas && s.ReplicasGiven {
			idle("INGEST_REPLICAS", s.Replicas, fmt.Sprintf("the stream %s exists, with %d; change it with: nats stream edit %s --replicas %d", name, have.Replicas, name, s.Replicas))
		}
		if have.MaxAge != s.MaxAge && s.MaxAgeGiven {
			idle("INGEST_MAX_AGE", s.MaxAge, fmt.Sprintf("the stream %s exists, and keeps hits for %s; change it with: nats stream edit %s --max-age %s", name, human.Duration(have.MaxAge), name, s.MaxAge))
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

// placeWithin bounds the wait at start for enough servers for a stream's replicas: a cluster may be starting.
const placeWithin = time.Minute

// refused turns a permanent error of JetStream into one that names the setting to change.
func (s *Settings) refused(err error) error {
	var answer *jetstream.APIError
	if !errors.As(err, &answer) {
		return err
	}
	switch answer.ErrorCode {
	case noPeers, noReplicas:
		return &setting.Error{Key: "INGEST_REPLICAS", Value: strconv.Itoa(s.Replicas),
			Allowed: fmt.Sprintf("at most the number of servers that NATS has for streams (%v)", err)}
	case subjectsOverlap:
		return setting.UsageError{Err: fmt.Errorf("%w: give that stream other subjects", err)}
	}
	return err
}

// uncreated returns the error for a stream that could not be created. It names the setting to change.
func (o *ownStreams) uncreated(ctx context.Context, name, subject string, err error) error {
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
			Allowed: fmt.Sprintf("1, or more if no other stream has subjects of hitp.> (%v)", failed)}
	}
	return &setting.Error{Key: "INGEST_SUBJECT", Value: subject,
		Allowed: fmt.Sprintf("%s that overlaps with no other stream's subjects; to count another stream, name it in INGEST_STREAMS (%v)", subjectForm, failed)}
}

const subjectForm = "a NATS subject such as hits.>"

// transient reports whether waiting can fix an error: a cluster returns such errors, or no reply, while it
// elects leaders or has too few servers.
func transient(err error) bool {
	var answer *jetstream.APIError
	if errors.As(err, &answer) {
		return answer.Code == http.StatusServiceUnavailable || answer.ErrorCode == noPeers
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders)
}

// awaitLeader calls try until it succeeds or fails permanently. It logs the wait, which placeWithin bounds if
// too few servers are the cause.
func awaitLeader(ctx context.Context, log zerolog.Logger, try func(context.Context) error) (failed error) {
	began := time.Now()
	what := fmt.Sprintf("a leader of JetStream, and up to %v for enough servers", placeWithin)
	err := retry.Until(ctx, log, what, func(ctx context.Context) error {
		failed = try(ctx)
		var answer *jetstream.APIError
		if errors.As(failed, &answer) && answer.ErrorCode == noPeers && time.Since(began) > placeWithin {
			return nil
		}
		if transient(failed) {
			return failed
		}
		return nil
	})
	if err != nil {
		return err
	}
	return failed
}
