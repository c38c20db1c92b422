package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"golang.org/x/term"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/setting"
)

// settings come from the environment; what to publish comes from flags.
type settings struct {
	NATS natsconn.Settings
	Log  program.Log
}

func main() {
	program.Main("publish", func(ctx context.Context) error {
		return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	})
}

// run is the program:
//
//	stdin ─▶ lines ─▶ parse ─▶ [rebase] ─▶ [pace] ─▶ batcher ─▶ publisher ─▶ JetStream
//	      synthetic ───────────────────────────────────┘            └─ acknowledgements
//
// When ctx ends it stops reading, submits the last batch, and waits up to grace for the acknowledgements.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var env settings
	var opts options
	fs := newFlags(&opts)
	if over, err := fs.Begin(args, "hits are read from standard input", about, &env, stdout); over || err != nil {
		return err
	}
	if err := opts.check(fs); err != nil {
		return err
	}
	out := progress.NewBar(stderr, "hits")
	log := env.Log.New(out.Screen)
	if f, ok := stdin.(*os.File); ok && !opts.synthetic && term.IsTerminal(int(f.Fd())) {
		fmt.Fprintln(stderr, "publish: reading hits from the terminal; Ctrl-D ends them, see --help")
	}
	conn, err := env.NATS.Connect(ctx, "tallyroll publish", log, outbox.ConnOptions()...)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := env.NATS.JetStream(conn)
	if err != nil {
		return err
	}
	switch _, err := outbox.FindStream(ctx, js, opts.subject+".0"); {
	case errors.As(err, new(setting.UsageError)):
		return err
	case err != nil && ctx.Err() == nil && !errors.Is(err, outbox.ErrNoStream): // for which the publisher logs a wait
		log.Warn().Err(err).Msgf("which stream takes %s.* is unknown", opts.subject)
	}
	rep, err := publish(ctx, conn, log, opts, stdin, out)
	out.End()
	return program.PrintLast(stdout, rep, err)
}

// grace bounds the wait for the last acknowledgements after an interrupt.
const grace = 5 * time.Second

// headerRoom is kept free in the largest message for Nats-Msg-Id.
const headerRoom = 256

// surelyOld is an age beyond nearly all tiers. This program does not read the tiers, which are in Redis.
const surelyOld = 366 * 24 * time.Hour

// leastPayload is a message size that surely holds any one hit.
const leastPayload = 4 << 10

func publish(ctx context.Context, conn *nats.Conn, log zerolog.Logger, opts options, in io.Reader,
	out *progress.Bar) (report, error) {
	if most := conn.MaxPayload(); most < leastPayload {
		return report{}, fmt.Errorf("NATS server %s takes messages of %d bytes at most; a hit can need %d: raise its "+
			"max_payload", natsconn.ServerOf(conn), most, leastPayload)
	}
	acks, giveUp := program.Outlive(ctx, grace)
	defer giveUp()
	start := time.Now()
	stored := storedCounter{shown: out.Add}
	pub := outbox.Start(acks, conn, log, opts.subject, stored.add)
	batch := &batcher{maxHits: int(opts.batch), maxBytes: int(conn.MaxPayload()) - headerRoom, submit: pub.Submit}
	feed := newFeeder(ctx, batch, opts.speed)
	feed.names.limit, feed.skip = opts.names, opts.skip
	feed.first = func(h hit.Hit) {
		if at := time.UnixMilli(h.At).UTC(); time.Since(at) > surelyOld {
			log.Warn().Msgf("the first hit is dated %s: workers reject what is older than their tiers (32 days by "+
				"default); --rebase now shifts a log's times",
				at.Format(time.RFC3339))
		}
	}
	held, fedErr := feed.all(opts, in, out)
	rep := report{bad: feed.bad, names: int64(len(feed.names.seen))}
	_ = batch.flush() // if it fails, cause has the reason
	cause := pub.Close()
	rep.tally, rep.took = stored.tally, time.Since(start)
	rep.open = max(held, batch.hits) - rep.tally.hits
	switch {
	case cause != nil && !errors.Is(cause, context.Canceled):
		return rep, fmt.Errorf("%w (%d hits are not acknowledged)", cause, rep.open)
	case fedErr != nil && ctx.Err() == nil:
		return rep, fedErr
	case rep.open > 0 && held > batch.hits:
		return rep, fmt.Errorf("interrupted: of %d hits read, %d were not sent and %d are unknown: sent, but not "+
			"acknowledged",
			held, held-batch.hits, batch.hits-rep.tally.hits)
	case rep.open > 0:
		return rep, fmt.Errorf("interrupted: %d of %d hits are unknown: not acknowledged within %v", rep.open,
			batch.hits, grace)
	case rep.bad.count > 0 && rep.tally.hits == 0 && opts.skip == nil && ctx.Err() == nil:
		return rep, errors.New("no line was a hit: is --format right?")
	}
	return rep, nil
}

// all feeds every hit. held is how many hits of a rebased log are in memory, published or not.
func (f *feeder) all(opts options, in io.Reader, out *progress.Bar) (held int64, err error) {
	if opts.synthetic {
		out.Expect(opts.load.total())
		return 0, opts.load.run(f.feed, f.wait)
	}
	parse := opts.parser()
	if !opts.rebase.on {
		return 0, f.lines(in, parse, opts.naming(f.feed))
	}
	f.holds = true
	log := newHitLog()
	err = f.lines(in, parse, opts.naming(log.add))
	held = int64(len(log.hits))
	if err != nil {
		return held, err // the latest hit of an incomplete log is unknown
	}
	at := opts.rebase.at
	if at == hit.NoTime {
		at = time.Now().UnixMilli()
	}
	dropped := int64(log.rebase(at))
	f.bad.add(dropped, 0, errRebased)
	held -= dropped
	out.Expect(held)
	return held, log.replay(f.feed)
}

type report struct {
	tally tally
	took  time.Duration
	bad   badLines
	names int64 // distinct; 0 if not counted
	open  int64 // hits that were read and are not acknowledged
}

// String is the program's last line.
func (r report) String() string {
	seconds := r.took.Seconds()
	rate := 0.0
	if seconds > 0 {
		rate = float64(r.tally.hits) / seconds
	}
	s := fmt.Sprintf("published %d hits in %d messages in %.2f s (%.0f hits/s)", r.tally.hits, r.tally.messages,
		seconds, rate)
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
	return s
}

type tally struct{ hits, messages int64 }

// storedCounter is what a Sender has stored. The Sender's goroutine owns it until that has ended.
type storedCounter struct {
	tally
	shown func(hits int)
}

func (p *storedCounter) add(hits int) {
	p.hits += int64(hits)
	p.messages++
	p.shown(hits)
}
