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

	"tallyroll/internal/fleet"
	"tallyroll/internal/outbox"
)

// Core NATS loses a message silently if no stream takes its subject. So a worker probes where the subject of
// hits leads.

// probeAgain is the pause between probes while hits reach no stream that is counted.
const probeAgain = 30 * time.Second

// probe finds the stream of the hits' subject, and logs it. Only the worker's goroutine uses it.
type probe struct {
	js       jetstream.JetStream
	settings Settings
	reads    func() fleet.Globs // the streams that the worker may read
	log      zerolog.Logger

	running sync.WaitGroup
	streams string // that were read at the last probe
	at      time.Time
	bad     atomic.Bool // any goroutine uses it
}

// look probes when the streams that are read have changed, and while the subject leads to none of them.
func (p *probe) look(ctx context.Context, all []string) {
	reads := p.reads()
	read := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !reads.Match(name) })
	slices.Sort(read)
	streams := strings.Join(read, " ")
	again := streams == p.streams
	if again && (!p.bad.Load() || time.Since(p.at) < probeAgain) {
		return
	}
	p.streams, p.at = streams, time.Now()
	p.running.Go(func() {
		stream, err := outbox.FindStream(ctx, p.js.Conn(), p.settings.Subject)
		if ctx.Err() != nil {
			return
		}
		bad := errors.Is(err, outbox.ErrNoStream) || err == nil && !reads.Match(stream) && !p.copied(ctx, read, stream)
		if before := p.bad.Swap(bad); before == bad && again {
			return
		}
		p.logTaker(bad, read, stream, err)
	})
}

// copied reports whether a stream that is read copies origin, which may be in another domain.
func (p *probe) copied(ctx context.Context, read []string, origin string) bool {
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

func (p *probe) logTaker(bad bool, read []string, stream string, err error) {
	subject := p.settings.Subject
	line := p.log.Warn().Str("subject", subject).Strs("streams", read)
	partitions := 0
	for slices.Contains(read, fmt.Sprintf("HITS_%d", partitions)) {
		partitions++
	}
	switch {
	case err == nil && !bad:
		p.log.Debug().Str("subject", subject).Str("stream", stream).Msg("hits published to the subject reach a stream that is counted")
	case err == nil:
		line.Str("stream", stream).Msgf("hits published to %s go to the stream %s, which INGEST_STREAMS=%s leaves out: they are not counted; add it there", subject, stream, p.settings.Streams)
	case errors.Is(err, outbox.ErrNoStream) && partitions > 0:
		line.Msgf(`HITS PUBLISHED TO %s ARE LOST: no stream takes that subject, and the server does not map it onto the partitions. Add to the server's configuration (or the account's), as deploy/nats-partitions.conf does, and reload it: mappings { %q: "hitp.{{partition(%d)}}.>" }`,
			subject, subject, partitions)
	case errors.Is(err, outbox.ErrNoStream):
		line.Msgf("hits published to %s are lost: no stream takes that subject; publish to the subjects of the streams, or add it to one of them", subject)
	default:
		p.log.Info().Err(err).Str("subject", subject).Msg("the worker could not find out whether hits published to the subject reach a stream that is counted")
	}
}
