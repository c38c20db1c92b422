package redrive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/rejects"
)

type settings struct {
	NATS      natsconn.Settings
	Namespace string `env:"TALLYROLL_NAMESPACE" envDefault:"tallyroll" help:"the fleet whose rejects are published again: the TALLYROLL_NAMESPACE of its workers"`
	Log       program.Log
}

// Validate checks what the types of the fields do not.
func (s *settings) Validate() error {
	return setting.Check("TALLYROLL_NAMESPACE", s.Namespace, hit.CheckNamespace(s.Namespace))
}

const about = `publishes again what workers have rejected. It reads HITS_REJECTED, and removes there
what is stored again. Each reject counts once, however often it runs.

  redrive --dry-run --ts now                lists what would be sent
  redrive --reason too_late --ts now        count after all what was rejected

Its last line has what was sent again, and what was left and why. 0: the outcome of all that
it sent is known; 1: run it again; 2: a bad flag or setting.`

// Run is the program redrive.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var env settings
	var opts options
	fs := newFlags(&opts)
	if over, err := fs.Begin(args, "rejects are read from HITS_REJECTED", about, &env, stdout); over || err != nil {
		return err
	}
	opts.namespace = env.Namespace
	out := progress.NewBar(stderr, "rejects")
	log := env.Log.New(out.Screen)
	conn, err := env.NATS.Connect(ctx, "tallyroll redrive", log, outbox.ConnOptions()...)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := env.NATS.JetStream(conn)
	if err != nil {
		return fmt.Errorf("JetStream: %w", err)
	}
	count, err := redrive(ctx, conn, js, log, opts, stdout, out)
	out.End()
	return program.PrintLast(stdout, count, err)
}

func newFlags(o *options) *program.FlagSet {
	fs := program.NewFlagSet("redrive")
	fs.Add("reason", "", "only rejects with these `reasons`, comma-separated, such as too_late (default all; those "+
		"that would be refused again are left)", func(s string) error {
		for name := range strings.SplitSeq(s, ",") {
			if !slices.Contains(hit.Reasons, hit.Reason(name)) {
				return fmt.Errorf("must be one or more of %s", rejects.Reasons)
			}
			o.reasons = append(o.reasons, hit.Reason(name))
		}
		return nil
	})
	fs.Add("stream", "", "only rejects of messages of this `stream`", func(s string) error {
		o.stream = s
		if outbox.CheckSubject(s) != nil || strings.Contains(s, ".") {
			return errors.New("must be the name of a stream, such as HITS")
		}
		return nil
	})
	fs.Add("ts", "keep", "which `time` they get: keep (their own), now (they count when they are stored again), "+
		"stored (when the refused message was stored)", func(s string) error {
		if o.ts = timing(s); !slices.Contains([]timing{keepTime, nowTime, storedTime}, o.ts) {
			return errors.New("must be keep, now or stored")
		}
		return nil
	})
	fs.Add("subject", "", "the `subject` to publish under: messages go to <subject>.redrive-… (default a subject of "+
		"the stream that refused them)", func(s string) error {
		o.subject = s
		return outbox.CheckSubject(s)
	})
	fs.Add("rate", "0", "`rejects` per second; 0 is as fast as possible",
		program.Number(&o.rate, "a number from 0 to 1e9", func(f float64) bool { return f >= 0 && f <= 1e9 }))
	fs.BoolVar(&o.dryRun, "dry-run", false, "list what would be sent, at most 100 of them, and send nothing")
	return fs
}
