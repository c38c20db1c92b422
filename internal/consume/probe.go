package consume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/boot"
)

// A core publish to a subject that no stream takes is lost without a word. So a
// worker looks where the subject of hits leads, with a message that no stream can
// store: it expects a stream whose name cannot be one, and whichever stream takes
// the subject refuses it and gives its name.

const (
	probeToken  = "tallyroll-probe"
	probeStream = "no stream has a name with spaces"
	probeWithin = 2 * time.Second
	// probeAgain is how often a bad end is looked at again.
	probeAgain = 30 * time.Second
)

var (
	errNoTaker   = errors.New("no stream takes it")
	errMayNot    = errors.New("this user may not publish there")
	errNoAnswer  = errors.New("nothing has answered")
	errProbeKept = errors.New("the message was stored")
)

// taker is the stream that takes a subject, which may have wildcards.
func taker(ctx context.Context, conn *nats.Conn, subject string) (string, error) {
	tokens := strings.Split(subject, ".")
	for i, token := range tokens {
		if token == "*" || token == ">" {
			tokens[i] = probeToken
		}
	}
	m := nats.NewMsg(strings.Join(tokens, "."))
	m.Header.Set(jetstream.ExpectedStreamHeader, probeStream)
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	reply, err := conn.RequestMsgWithContext(ctx, m)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return "", errNoTaker
	case err != nil:
		if last := conn.LastError(); errors.Is(last, nats.ErrPermissionViolation) && strings.Contains(last.Error(), m.Subject) {
			return "", errMayNot
		}
		return "", errors.Join(errNoAnswer, err)
	}
	var answer struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil || answer.Stream == "" {
		return "", fmt.Errorf("%w: something that is no stream did", errNoAnswer) // a service that listens there
	}
	if answer.Error == nil {
		return answer.Stream, errProbeKept
	}
	return answer.Stream, nil
}

// probe looks, when the streams that are read have changed and for as long as it
// does not lead to one of them, where the subject of hits leads, and says so.
func (w *worker) probe(ctx context.Context, all []string) {
	read := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !w.settings.Streams.match(name) })
	slices.Sort(read)
	is := strings.Join(read, " ")
	if is == w.probed.streams && (!w.probed.bad.Load() || time.Since(w.probed.at) < probeAgain) {
		return
	}
	again := is == w.probed.streams
	w.probed.streams, w.probed.at = is, time.Now()
	w.running.Go(func() {
		stream, err := taker(ctx, w.js.Conn(), w.settings.Subject)
		if ctx.Err() != nil {
			return
		}
		bad := errors.Is(err, errNoTaker) || err == nil && !w.settings.Streams.match(stream) && !w.copied(ctx, read, stream)
		if was := w.probed.bad.Swap(bad); was == bad && again {
			return
		}
		w.sayTaker(bad, read, stream, err)
	})
}

// copied reports whether a stream that is read copies another one, which may be of another domain.
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

// sayTaker says where hits go, and what to do if they are not counted.
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
	case errors.Is(err, errNoTaker) && partitions > 0:
		line.Msgf(`HITS PUBLISHED TO %s ARE LOST: no stream takes that subject, and the server does not map it onto the partitions. Add to the server's configuration (or the account's), as deploy/nats-partitions.conf does, and reload it: mappings { %q: "hitp.{{partition(%d)}}.>" }`,
			subject, subject, partitions)
	case errors.Is(err, errNoTaker):
		line.Msgf("hits published to %s are lost: no stream takes that subject; publish to the subjects of the streams, or add it to one of them", subject)
	default:
		w.log.Info().Err(err).Str("subject", subject).Msg("whether hits published to the subject reach a stream that is counted could not be looked at")
	}
}

// sayIdle says at start which settings have no effect, because the streams are there already.
func (w *worker) sayIdle(ctx context.Context, all []string) {
	own, s := w.own(), w.settings
	read := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !s.Streams.match(name) })
	if len(read) == 0 {
		return
	}
	idle := func(setting string, value any, why string) {
		w.log.Warn().Strs("streams", read).Msgf("%s=%v has no effect: %s", setting, value, why)
	}
	there := slices.DeleteFunc(slices.Clone(read), func(name string) bool { return own[name] == "" })
	if s.Partitions > 1 && len(there) == 0 {
		idle("INGEST_PARTITIONS", s.Partitions, "streams are made only if none matches INGEST_STREAMS; docs/scaling.md says how to go over to several (make HITS_0 by hand, and the next start makes the others)")
	}
	if s.Partitions == 1 && len(there) == 0 && s.isSet("Subject", s.Subject) {
		idle("INGEST_SUBJECT", s.Subject, "it is the subject of a stream HITS that would be made if none matched INGEST_STREAMS")
	}
	for _, name := range there {
		asking, cancel := context.WithTimeout(ctx, lookWithin)
		handle, err := w.js.Stream(asking, name)
		cancel()
		if err != nil {
			continue // what cannot be looked at now is said by others
		}
		have := handle.CachedInfo().Config
		if s.Partitions == 1 && s.isSet("Subject", s.Subject) && !slices.Contains(have.Subjects, s.Subject) {
			idle("INGEST_SUBJECT", s.Subject, fmt.Sprintf("the stream %s is there already, on %s; change it with: nats stream edit %s", name, strings.Join(have.Subjects, ", "), name))
		}
		if have.Replicas != s.Replicas && s.isSet("Replicas", fmt.Sprint(s.Replicas)) {
			idle("INGEST_REPLICAS", s.Replicas, fmt.Sprintf("the stream %s is there already, with %d; change it with: nats stream edit %s --replicas %d", name, have.Replicas, name, s.Replicas))
		}
		if have.MaxAge != s.MaxAge && s.MaxAge != defaultMaxAge() {
			idle("INGEST_MAX_AGE", s.MaxAge, fmt.Sprintf("the stream %s is there already, and keeps hits for %s; change it with: nats stream edit %s --max-age %s", name, have.MaxAge, name, s.MaxAge))
		}
	}
}

// isSet reports whether a setting differs from its default: one that was left alone needs no word.
func (Settings) isSet(field, value string) bool { return value != defaultOf(field) }

func defaultOf(field string) string {
	f, _ := reflect.TypeFor[Settings]().FieldByName(field)
	return f.Tag.Get("envDefault")
}

func defaultMaxAge() time.Duration {
	d, _ := boot.ParseDuration(defaultOf("MaxAge")) // the tag is read so at every start
	return d
}
