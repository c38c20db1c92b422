package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/term"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/internal/window"
)

// settings come from the environment; what to publish comes from flags.
type settings struct {
	NATS      boot.NATS
	Namespace string `env:"TALLYROLL_NAMESPACE" envDefault:"tallyroll" help:"the fleet whose rejects are counted in the last line and, with --from-rejects, published again: the TALLYROLL_NAMESPACE of its workers"`
	Log       boot.Log
}

// Validate checks what the types of the fields do not.
func (s *settings) Validate() error {
	if err := window.CheckNamespace(s.Namespace); err != nil {
		return &boot.SettingError{Key: "TALLYROLL_NAMESPACE", Value: s.Namespace, Allowed: err.Error()}
	}
	return nil
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
// It connects while it reads, and the first hit waits for the connection: an input
// without a hit needs no server.
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
	opts.namespace, opts.rejects.namespace = env.Namespace, env.Namespace
	switch {
	case opts.follow != "":
		return runFollow(ctx, &env, opts, stdout, stderr)
	case opts.rejects.on:
		return runRejects(ctx, &env, opts.rejects, stdout, stderr)
	}
	out := newProgress(stderr)
	log := env.Log.New(out.screen)
	if f, ok := stdin.(*os.File); ok && !opts.synthetic && term.IsTerminal(int(f.Fd())) {
		fmt.Fprintln(stderr, "publish: reading hits from the terminal; Ctrl-D ends them, --help says more")
	}
	connect := func(ctx context.Context) (*nats.Conn, error) {
		return env.NATS.Connect(ctx, "tallyroll publish", log, connOptions()...)
	}
	opts.access = env.NATS.NATSAccess
	opts.ask = asker(ctx, stderr)
	rep, err := publish(ctx, connect, log, opts, stdin, out)
	out.end()
	if _, printErr := fmt.Fprintln(stdout, rep); err == nil && printErr != nil {
		err = fmt.Errorf("print the last line: %w", printErr)
	}
	return err
}

// runRejects is the program with --from-rejects.
func runRejects(ctx context.Context, env *settings, opts fromRejects, stdout, stderr io.Writer) error {
	out := newProgressOf(stderr, "rejects")
	log := env.Log.New(out.screen)
	conn, err := env.NATS.Connect(ctx, "tallyroll publish", log, connOptions()...)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := env.NATS.JetStream(conn)
	if err != nil {
		return fmt.Errorf("JetStream: %w", err)
	}
	count, err := redrive(ctx, conn, js, log, opts, stdout, out)
	out.end()
	if _, printErr := fmt.Fprintln(stdout, count); err == nil && printErr != nil {
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

// surelyOld is an age that hardly any tiers reach back to. Which they are is in
// Redis, which this program does not know: the last line tells what was rejected.
const surelyOld = 366 * 24 * time.Hour

// leastPayload is a message that surely holds any one hit.
const leastPayload = 4 << 10

// publish publishes everything that in, or the synthetic load, gives.
func publish(ctx context.Context, connect func(context.Context) (*nats.Conn, error), log zerolog.Logger, opts options, in io.Reader, out *progress) (report, error) {
	acks, giveUp := outliving(ctx, grace)
	defer giveUp()
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	server := dial(func() (*nats.Conn, error) { return connect(reading) }, stopReading)
	defer server.close()

	start := time.Now()
	var pub *publisher // nil until there is a hit and a connection
	batch := &batcher{maxHits: int(opts.batch), open: func() (func(*message) error, int, error) {
		conn, err := server.wait(acks) // also after an interrupt, for as long as the attempt takes
		if err != nil {
			return nil, 0, err
		}
		pub = newPublisher(conn, log, opts.subject, out.stored)
		go pub.publish(acks) //nolint:errcheck // it keeps its error in cause
		return pub.submit, int(conn.MaxPayload()) - headerRoom, nil
	}}
	feed := newFeeder(reading, batch, opts.speed)
	feed.names.limit, feed.names.ask = opts.names, opts.ask
	feed.first = func(h hit.Hit) {
		if at := time.UnixMilli(h.At).UTC(); time.Since(at) > surelyOld {
			log.Warn().Msgf("the first hit is dated %s: workers reject what is older than their tiers (32 days by default); --rebase now shifts a log's times",
				at.Format(time.RFC3339))
		}
	}
	held, fedErr := feed.all(opts, in, out)
	rep := report{bad: feed.bad, names: int64(len(feed.names.seen))}
	var cause error
	if pub != nil {
		_ = batch.flush() // if it fails, pub.cause says why
		pub.close()
		<-pub.ended
		rep.tally, cause = pub.tally, pub.cause
	}
	rep.took = time.Since(start)
	rep.open = max(held, batch.hits) - rep.tally.hits
	if rep.tally.messages > 0 {
		js, err := opts.access.JetStream(server.conn)
		if err != nil {
			return rep, fmt.Errorf("JetStream: %w", err)
		}
		rep.rejects = rejectsOf(ctx, js, opts.namespace, &pub.places)
	}
	if failed := server.failure(); failed != nil && ctx.Err() == nil {
		return rep, failed
	}
	switch {
	case cause != nil && !errors.Is(cause, context.Canceled):
		return rep, fmt.Errorf("%w (%d hits are not acknowledged)", cause, rep.open)
	case fedErr != nil && ctx.Err() == nil:
		return rep, fedErr
	case rep.open > 0 && pub == nil:
		return rep, fmt.Errorf("interrupted before NATS was reached: of %d hits read, none was sent", rep.open)
	case rep.open > 0 && held > batch.hits:
		return rep, fmt.Errorf("interrupted: of %d hits read, %d were not sent and %d are unknown: sent, but not acknowledged",
			held, held-batch.hits, batch.hits-rep.tally.hits)
	case rep.open > 0:
		return rep, fmt.Errorf("interrupted: %d of %d hits are unknown: not acknowledged within %v", rep.open, batch.hits, grace)
	}
	return rep, nil
}

// outliving returns a context that ends so long after ctx does. It must be ended.
func outliving(ctx context.Context, by time.Duration) (after context.Context, end func()) {
	after, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(by):
			cancel()
		case <-after.Done():
		}
	})
	return after, func() {
		stop()
		cancel()
	}
}

// rejectsOf asks for rejects when all is stored; an interrupt, before or meanwhile, makes it short.
func rejectsOf(ctx context.Context, js jetstream.JetStream, namespace string, stored *places) *refusals {
	after, giveUp := outliving(ctx, rejectsInterrupted)
	defer giveUp()
	asking, stop := context.WithTimeout(after, rejectsWithin)
	defer stop()
	return askRejects(asking, js, namespace, stored)
}

// all feeds every hit there is. held is how many hits of a rebased log are in
// memory, published or not.
func (f *feeder) all(opts options, in io.Reader, out *progress) (held int64, err error) {
	if opts.synthetic {
		out.expect(opts.load.total())
		return 0, opts.load.run(f.take, f.wait)
	}
	parse := opts.parser()
	if !opts.rebase.on {
		return 0, f.lines(in, parse, f.take)
	}
	f.held = true
	log := newHitLog()
	err = f.lines(in, parse, log.add)
	held = int64(len(log.hits))
	if err != nil {
		return held, err // of a log that is not complete the last hit is not known
	}
	at := opts.rebase.at
	if at == hit.NoTime {
		at = time.Now().UnixMilli()
	}
	dropped := int64(log.rebase(at))
	f.bad.add(dropped, 0, errRebased)
	held -= dropped
	out.expect(held)
	return held, log.replay(f.take)
}

// report is what a run has done.
type report struct {
	tally tally
	took  time.Duration
	bad   badLines
	names int64 // distinct; 0 if nobody counted them
	open  int64 // hits that were read and are not acknowledged

	rejects *refusals // nil if nobody was asked
}

// String is the program's last line.
func (r report) String() string {
	seconds := r.took.Seconds()
	rate := 0.0
	if seconds > 0 {
		rate = float64(r.tally.hits) / seconds
	}
	s := fmt.Sprintf("published %d hits in %d messages in %.2f s (%.0f hits/s)", r.tally.hits, r.tally.messages, seconds, rate)
	if r.names > 0 {
		s += fmt.Sprintf("; %s distinct names", count(r.names))
	}
	s += fmt.Sprintf("; skipped %d bad lines", r.bad.count)
	if r.bad.count > 0 {
		line := ""
		if r.bad.first > 0 {
			line = fmt.Sprintf("line %d: ", r.bad.first)
		}
		s += fmt.Sprintf(" (first: %s%v)", line, r.bad.reason)
	}
	return s + r.rejects.String()
}

// progress shows on a terminal how many hits are stored.
type progress struct {
	screen *boot.Screen
	start  time.Time
	total  atomic.Int64 // 0 while nobody knows
	done   atomic.Int64
}

func newProgress(out io.Writer) *progress { return newProgressOf(out, "hits") }

func newProgressOf(out io.Writer, items string) *progress {
	return &progress{screen: boot.NewScreen(out, boot.Words{Items: items, End: "done"}), start: time.Now()}
}

// expect sets how many hits there will be.
func (p *progress) expect(hits int64) { p.total.Store(hits) }

func (p *progress) stored(hits int) {
	done, total := p.done.Add(int64(hits)), p.total.Load()
	rate := float64(done) / time.Since(p.start).Seconds()
	p.screen.Progress("", boot.Progress{
		Done: uint64(done), Left: uint64(max(0, total-done)), Open: total == 0, PerSecond: rate, Gained: rate,
	})
}

// end takes the bar away, so that the last line stands alone.
func (p *progress) end() { p.screen.Progress("", boot.Progress{}) }
