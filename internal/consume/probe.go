package consume

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/boot"
	"tallyroll/internal/human"
	"tallyroll/internal/puback"
)

// If a producer publishes with core NATS to a subject that no stream takes, the message is lost
// without a word. So a worker probes where the subject of hits leads.

// probeAgain is how often the worker probes again while hits do not reach a stream that is counted.
const probeAgain = 30 * time.Second

// probe finds out where the subject of hits leads, and logs it. It does so when the streams
// that are read have changed, and for as long as the subject leads to none of them.
func (w *worker) probe(ctx context.Context, all []string) {
	reads := w.reads()
	read := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !reads.Match(name) })
	slices.Sort(read)
	is := strings.Join(read, " ")
	if is == w.probed.streams && (!w.probed.bad.Load() || time.Since(w.probed.at) < probeAgain) {
		return
	}
	again := is == w.probed.streams
	w.probed.streams, w.probed.at = is, time.Now()
	w.running.Go(func() {
		stream, err := puback.Taker(ctx, w.js.Conn(), w.settings.Subject)
		if ctx.Err() != nil {
			return
		}
		bad := errors.Is(err, puback.ErrNoStream) || err == nil && !reads.Match(stream) && !w.copied(ctx, read, stream)
		if was := w.probed.bad.Swap(bad); was == bad && again {
			return
		}
		w.sayTaker(bad, read, stream, err)
	})
}

// copied reports whether a stream that is read copies the stream origin, which may be in another domain.
func (w *worker) copied(ctx context.Context, read []string, origin string) bool {
	return slices.ContainsFunc(read, func(name string) bool {
		handle, err := w.js.Stream(ctx, name)
		if err != nil {
			return false
		}
		config := handle.CachedInfo().Config
		return config.Mirror != nil && config.Mirror.Name == origin ||
			slices.ContainsFunc(config.Sources, func(s *jetstream.StreamSource) bool { return s.Name == origin })
	})
}

// sayTaker logs where hits go, and what to do if they are not counted.
func (w *worker) sayTaker(bad bool, read []string, stream string, err error) {
	subject := w.settings.Subject
	line := w.log.Warn().Str("subject", subject).Strs("streams", read)
	partitions := 0
	for slices.Contains(read, fmt.Sprintf("HITS_%d", partitions)) {
		partitions++
	}
	switch {
	case err == nil && !bad:
		w.log.Debug().Str("subject", subject).Str("stream", stream).Msg("hits published to the subject reach a stream that is counted")
	case err == nil:
		line.Str("stream", stream).Msgf("hits published to %s go to the stream %s, which INGEST_STREAMS=%s leaves out: they are not counted; add it there", subject, stream, w.settings.Streams)
	case errors.Is(err, puback.ErrNoStream) && partitions > 0:
		line.Msgf(`HITS PUBLISHED TO %s ARE LOST: no stream takes that subject, and the server does not map it onto the partitions. Add to the server's configuration (or the account's), as deploy/nats-partitions.conf does, and reload it: mappings { %q: "hitp.{{partition(%d)}}.>" }`,
			subject, subject, partitions)
	case errors.Is(err, puback.ErrNoStream):
		line.Msgf("hits published to %s are lost: no stream takes that subject; publish to the subjects of the streams, or add it to one of them", subject)
	default:
		w.log.Info().Err(err).Str("subject", subject).Msg("the worker could not find out whether hits published to the subject reach a stream that is counted")
	}
}

// sayIdle logs at start which settings have no effect because the streams already exist.
func (w *worker) sayIdle(ctx context.Context, all []string) {
	own, s := w.own(), w.settings
	read := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !s.Streams.Match(name) })
	if len(read) == 0 {
		return
	}
	idle := func(setting string, value any, why string) {
		w.log.Warn().Strs("streams", read).Msgf("%s=%v has no effect: %s", setting, value, why)
	}
	there := slices.DeleteFunc(slices.Clone(read), func(name string) bool { return own[name] == "" })
	if s.Partitions > 1 && len(there) == 0 {
		idle("INGEST_PARTITIONS", s.Partitions, "streams are made only if none matches INGEST_STREAMS; docs/scaling.md says how to change to several (make HITS_0 by hand, and the next start makes the others)")
	}
	if s.Partitions == 1 && len(there) == 0 && s.isSet("Subject", s.Subject) {
		idle("INGEST_SUBJECT", s.Subject, "it is the subject of the stream HITS, which is made only if no stream matches INGEST_STREAMS")
	}
	for _, name := range there {
		asking, cancel := context.WithTimeout(ctx, lookWithin)
		handle, err := w.js.Stream(asking, name)
		cancel()
		if err != nil {
			continue // other log lines report streams that do not answer
		}
		have := handle.CachedInfo().Config
		if s.Partitions == 1 && s.isSet("Subject", s.Subject) && !slices.Contains(have.Subjects, s.Subject) {
			idle("INGEST_SUBJECT", s.Subject, fmt.Sprintf("the stream %s is there already, on %s; change it with: nats stream edit %s", name, strings.Join(have.Subjects, ", "), name))
		}
		if have.Replicas != s.Replicas && s.isSet("Replicas", fmt.Sprint(s.Replicas)) {
			idle("INGEST_REPLICAS", s.Replicas, fmt.Sprintf("the stream %s is there already, with %d; change it with: nats stream edit %s --replicas %d", name, have.Replicas, name, s.Replicas))
		}
		if have.MaxAge != s.MaxAge && s.MaxAge != defaultMaxAge() {
			idle("INGEST_MAX_AGE", s.MaxAge, fmt.Sprintf("the stream %s is there already, and keeps hits for %s; change it with: nats stream edit %s --max-age %s", name, human.Duration(have.MaxAge), name, s.MaxAge))
		}
	}
}

// isSet reports whether a setting differs from its default. If it does not, there is nothing to log.
func (Settings) isSet(field, value string) bool { return value != defaultOf(field) }

func defaultOf(field string) string {
	f, _ := reflect.TypeFor[Settings]().FieldByName(field)
	return f.Tag.Get("envDefault")
}

func defaultMaxAge() time.Duration {
	d, _ := boot.ParseDuration(defaultOf("MaxAge")) // every start parses this tag, so it is valid
	return d
}
