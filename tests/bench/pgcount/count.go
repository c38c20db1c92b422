package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// flushInterval is the least time between the beginnings of two transactions. A load grows while the one before
// it is being written.
const flushInterval = 250 * time.Millisecond

// count reads the stream from behind the position in the database.
func count(ctx context.Context, js jetstream.JetStream, s *store) error {
	consumer, err := js.OrderedConsumer(ctx, s.stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: s.seq + 1, InactiveThreshold: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	b := newBuffer(s.cells[0])
	failed := make(chan error, 1)
	reading, err := consumer.Consume(func(m jetstream.Msg) {
		if err := b.add(m); err != nil {
			select {
			case failed <- err:
			default: // one is enough
			}
		}
	}, jetstream.PullMaxMessages(10_000))
	if err != nil {
		return err
	}
	defer reading.Stop()
	flush := time.NewTicker(flushInterval)
	defer flush.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-flush.C:
			if l := b.take(); l.hits > 0 {
				if err := s.write(ctx, l); err != nil {
					return err
				}
			}
		}
	}
}
