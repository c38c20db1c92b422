package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"tallyroll/internal/consume"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/window/schema"
)

type settings struct {
	NATS     natsconn.Settings
	Redis    redisconn.Settings
	MaxAhead time.Duration `env:"INGEST_MAX_AHEAD" envDefault:"10s" help:"as the workers have it"`
	MaxHits  int           `env:"INGEST_MAX_HITS" envDefault:"10000" help:"as the workers have it"`
	Log      program.Log
}

// Validate checks what the types of the fields do not.
func (s *settings) Validate() error {
	return setting.CheckMost(setting.Most{Key: "INGEST_MAX_HITS", N: int64(s.MaxHits)})
}

type options struct {
	rate           float64
	memory         int64 // MiB
	maxDifferences int64
}

const about = `counts again what the streams hold, and compares it with every cell in Redis. It changes
nothing, and may run while workers count.

  audit                      as fast as --rate allows
  audit --memory 4096        reads the streams fewer times, if there are many counters

It lists each difference with both numbers, and what cannot be decided because the streams
no longer hold it. 0: no difference; 1: at least one; 2: it could not judge.`

var ErrDiffers = errors.New("the streams and Redis differ")

// Run is the program audit. Its error is ErrDiffers, or a setting.UsageError: why it could not judge.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	err := run(ctx, args, stdout, stderr)
	switch {
	case err == nil, errors.Is(err, ErrDiffers):
		return err
	case ctx.Err() != nil:
		err = errors.New("interrupted before all was judged")
	}
	return setting.UsageError{Err: err}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var env settings
	var opts options
	fs := newFlags(&opts)
	if over, err := fs.Begin(args, "settings are environment variables", about, &env, stdout); over || err != nil {
		return err
	}
	// Garbage may take as much again until it is collected.
	debug.SetMemoryLimit(opts.memory << 20)
	a, end, err := connect(ctx, &env, opts, stdout, stderr)
	if err != nil {
		return err
	}
	defer end()
	err = redisconn.Explain(a.audit(ctx))
	a.bar.End()
	if err != nil {
		return err
	}
	a.report.notes()
	if err := program.PrintLast(stdout, a.report.String(), nil); err != nil {
		return err
	}
	if a.report.differences > 0 {
		return ErrDiffers
	}
	return nil
}

// connectWithin bounds the wait for the servers, because the caller waits for the result.
const connectWithin = time.Minute

func connect(ctx context.Context, env *settings, opts options, stdout, stderr io.Writer) (*auditor, func(), error) {
	bar := progress.NewBar(stderr, "messages")
	log := env.Log.New(bar.Screen)
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	client := env.Redis.Logging(log).Client()
	closeRedis := func() { _ = client.Close() }
	if err := redisconn.Await(ctx, client, log); err != nil {
		closeRedis()
		return nil, nil, fmt.Errorf("wait for Redis: %w", err)
	}
	conn, err := env.NATS.Connect(ctx, "tallyroll audit", log)
	if err != nil {
		closeRedis()
		return nil, nil, fmt.Errorf("NATS: %w", err)
	}
	end := func() {
		conn.Close()
		closeRedis()
	}
	js, err := env.NATS.JetStream(conn)
	if err != nil {
		end()
		return nil, nil, fmt.Errorf("JetStream: %w", err)
	}
	return &auditor{
		store: schema.NewStore(client, env.Redis.Namespace), js: js, namespace: env.Redis.Namespace,
		limits: consume.Limits{MaxAhead: env.MaxAhead, MaxHits: env.MaxHits},
		memory: int(opts.memory << 20 / 2), log: log, bar: bar, pace: newPace(opts.rate),
		report: newReport(stdout, int(opts.maxDifferences)),
	}, end, nil
}

func newFlags(o *options) *program.FlagSet {
	fs := program.NewFlagSet("audit")
	fs.Add("rate", "50000", "the most `items` per second that are read: messages of streams, hashes and keys of "+
		"Redis; 0 is as fast as possible",
		program.Number(&o.rate, "a number from 0 to 1e9", func(f float64) bool { return f >= 0 && f <= 1e9 }))
	fs.Add("memory", "512", "about how many `megabytes` (MiB) the program may take; if all cells do not fit into half "+
		"of that, the streams are read several times", program.Whole(&o.memory, 32, 1<<20))
	fs.Add("max-differences", "100", "the most `differences` that are listed; all are counted",
		program.Whole(&o.maxDifferences, 0, 1e9))
	return fs
}
