package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"golang.org/x/term"

	"tallyroll/internal/boot"
)

// settings come from the environment; what to publish comes from flags.
type settings struct {
	NATS boot.NATS
	Log  boot.Log
}

func main() {
	boot.Main("publish", func(ctx context.Context) error {
		return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	})
}

// run is the program:
//
//	stdin ─▶ lines ─▶ parse ─▶ [rebase] ─▶ [pace] ─▶ batcher ─▶ publisher ─▶ JetStream
//	      synthetic ───────────────────────────────────┘            └─ acknowledgements
//
// When ctx ends it stops reading, submits the last batch, and waits up to
// grace for the acknowledgements.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var env settings
	opts, err := parseFlags(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		printHelp(stdout, &env)
		return nil
	case err != nil:
		return err
	case opts.version:
		fmt.Fprintln(stdout, "publish", boot.Version())
		return nil
	}
	if err := boot.Parse(&env); err != nil {
		return err
	}
	out := newProgress(stderr)
	log := env.Log.New(out.screen)
	conn, err := env.NATS.Connect(ctx, "tallyroll publish", log, connOptions()...)
	if err != nil && ctx.Err() != nil {
		_, err = fmt.Fprintln(stdout, report{}) // interrupted before anything was read
		return err
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	if f, ok := stdin.(*os.File); ok && !opts.synthetic && term.IsTerminal(int(f.Fd())) {
		fmt.Fprintln(stderr, "publish: reading hits from the terminal; Ctrl-D ends them, --help says more")
	}
	rep, err := publish(ctx, conn, log, opts, stdin, out)
	out.end()
	if _, printErr := fmt.Fprintln(stdout, rep); err == nil && printErr != nil {
		err = fmt.Errorf("print the last line: %w", printErr)
	}
	return err
}

// connOptions let nothing pile up in the client while the connection is lost:
// the publisher keeps what is not acknowledged and sends it again by itself.
func connOptions() []nats.Option {
	return []nats.Option{nats.ReconnectBufSize(-1)}
}

// grace is how long the last acknowledgements may take after an interrupt.
const grace = 5 * time.Second

// headerRoom is kept free in the largest message for Nats-Msg-Id.
const headerRoom = 256

// leastPayload is a message that surely holds any one hit.
const leastPayload = 4 << 10

// publish publishes everything that in, or the synthetic load, gives.
func publish(ctx context.Context, conn *nats.Conn, log zerolog.Logger, opts options, in io.Reader, out *progress) (report, error) {
	if conn.MaxPayload() < leastPayload {
		return report{}, fmt.Errorf("NATS server %s takes messages of %d bytes at most; a hit can need %d: raise its max_payload",
			boot.NATSServer(conn), conn.MaxPayload(), leastPayload)
	}
	acks, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
			giveUp()
		case <-acks.Done():
		}
	})()
	start := time.Now()
	pub := newPublisher(conn, log, opts.subject, out.stored)
	go pub.run(acks) //nolint:errcheck // it keeps its error in cause
	batch := &batcher{submit: pub.submit, maxHits: int(opts.batch), maxBytes: int(conn.MaxPayload()) - headerRoom}
	feed := newFeeder(ctx, batch, opts.speed)
	held, fedErr := feed.all(opts, in, out)
	_ = batch.flush() // where it fails, pub.cause says why
	pub.close()
	<-pub.ended

	rep := report{tally: pub.tally, took: time.Since(start), bad: feed.bad, open: max(held, batch.hits) - pub.tally.hits}
	switch {
	case pub.cause != nil && !errors.Is(pub.cause, context.Canceled):
		return rep, fmt.Errorf("%w (%d hits are not acknowledged)", pub.cause, rep.open)
	case rep.open > 0 && held > batch.hits:
		return rep, fmt.Errorf("interrupted: of %d hits read, %d were not sent and %d are unknown: sent, but not acknowledged",
			held, held-batch.hits, batch.hits-pub.tally.hits)
	case rep.open > 0:
		return rep, fmt.Errorf("interrupted: %d of %d hits are unknown: not acknowledged within %v", rep.open, batch.hits, grace)
	case fedErr != nil && ctx.Err() == nil:
		return rep, fedErr
	}
	return rep, nil
}

// all feeds every hit there is. held is how many hits of a rebased log are in
// memory, published or not.
func (f *feeder) all(opts options, in io.Reader, out *progress) (held int64, err error) {
	if opts.synthetic {
		out.expect(opts.load.total())
		return 0, opts.load.run(f.take, f.wait)
	}
	parse := parseName
	switch opts.format {
	case "combined":
		parse = combinedParser(opts.key)
	case "ndjson":
		parse = ndjsonParser()
	}
	if !opts.rebase.on {
		return 0, f.lines(in, parse, f.take)
	}
	log := newHitLog()
	err = f.lines(in, parse, log.add)
	held = int64(len(log.hits))
	if err != nil {
		return held, err // of a log that is not complete the last hit is not known
	}
	at := opts.rebase.at
	if at.IsZero() {
		at = time.Now()
	}
	log.rebase(at.UnixMilli())
	out.expect(held)
	return held, log.replay(f.take)
}
