package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/consume/fleet"
	"tallyroll/internal/platform/outbox"
)

// Core NATS loses a message silently if no stream has its subject. So a worker probes which stream stores the
// subject of hits.

// probeEvery is the pause between probes while hits reach no stream that is counted.
const probeEvery = 30 * time.Second

// probe finds and logs the stream of the hits' subject. The worker's goroutine owns all but uncounted.
type probe struct {
	js       jetstream.JetStream
	settings Settings
	readable func() fleet.Globs // the streams that the worker may read
	log      zerolog.Logger

	running       sync.WaitGroup
	probedStreams string    // that were read at the last probe
	probedAt      time.Time // of the last probe
	uncounted     atomic.Bool
}

// check probes if the streams that are read have changed, or if no stream that is read has the subject.
func (p *probe) check(ctx context.Context, all []string) {
	reads := p.readable()
	read := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !reads.Match(name) })
	slices.Sort(read)
	streams := strings.Join(read, " ")
	again := streams == p.probedStreams
	if again && (!p.uncounted.Load() || time.Since(p.probedAt) < probeEvery) {
		return
	}
	p.probedStreams, p.probedAt = streams, time.Now()
	p.running.Go(func() {
		stream, err := outbox.FindStream(ctx, p.js, p.settings.Subject)
		if ctx.Err() != nil {
			return
		}
		bad := errors.Is(err, outbox.ErrNoStream) || err == nil && !reads.Match(stream) &&
			!p.isCopied(ctx, read, stream)
		if before := p.uncounted.Swap(bad); before == bad && again {
			return
		}
		p.logDestination(bad, read, stream, err)
	})
}

// isCopied reports whether a stream that is read mirrors or sources origin, which may be in another domain.
func (p *probe) isCopied(ctx context.Context, read []string, origin string) bool {
	return slices.ContainsFunc(read, func(name string) bool {
		handle, err := p.js.Stream(ctx, name)
		if err != nil {
			return false
		}
		config := handle.CachedInfo().Config
		return config.Mirror != nil && config.Mirror.Name == origin ||
			slices.ContainsFunc(config.Sources, func(s *jetstream.StreamSource) bool { return s.Name == origin })
	})
}

func (p *probe) logDestination(bad bool, read []string, stream string, err error) {
	subject := p.settings.Subject
	line := p.log.Warn().Str("subject", subject).Strs("streams", read)
	partitions := 0
	for slices.Contains(read, fmt.Sprintf("HITS_%d", partitions)) {
		partitions++
	}
	switch {
	case err == nil && !bad:
		p.log.Debug().Str("subject", subject).Str("stream", stream).Msg("hits published to the subject reach a " +
			"stream that is counted")
	case err == nil:
		line.Str("stream", stream).Msgf("hits published to %s go to the stream %s, which INGEST_STREAMS=%s leaves "+
			"out: they are not counted; add it there", subject, stream, p.settings.Streams)
	case errors.Is(err, outbox.ErrNoStream) && partitions > 0:
		line.Msgf("hits published to %s are lost: no stream has that subject, and the server does not map it onto the "+
			"partitions. Add to the server's configuration (or the account's), as deploy/nats-partitions.conf does, "+
			`and reload it: mappings { %q: "hitp.{{partition(%d)}}.>" }`, subject, subject, partitions)
	case errors.Is(err, outbox.ErrNoStream):
		line.Msgf("hits published to %s are lost: no stream has that subject; publish to the subjects of the streams, "+
			"or add it to one of them", subject)
	default:
		p.log.Info().Err(err).Str("subject", subject).Msg("cannot tell whether hits published to the subject reach a " +
			"stream that is counted")
	}
}
