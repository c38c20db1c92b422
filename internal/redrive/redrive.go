package redrive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/rejects"
)

// grace bounds the wait for the last acknowledgements after an interrupt.
const grace = 5 * time.Second

type options struct {
	namespace string       // that has refused them; from the environment
	reasons   []hit.Reason // empty: those that can count
	stream    string       // empty: all
	ts        timing
	dryRun    bool
	subject   string  // empty: where the refused message was
	rate      float64 // rejects per second; 0: as fast as the stream acknowledges
}

// redriver publishes rejects again. The goroutine in readAll owns it.
type redriver struct {
	options
	js            jetstream.JetStream
	rejected      jetstream.Stream
	log           zerolog.Logger
	list          io.Writer // of --dry-run
	bar           *progress.Bar
	pub           *outbox.Sender // nil with --dry-run
	reportOutcome func(outcome)
	maxBody       int // bytes of the largest body
	targets       targets
	count         *counts
	listedSoFar   int
	start         time.Time
	paced         int64
	warnings      map[string]bool
}

// redrive publishes again the rejects of HITS_REJECTED that opts select:
//
//	HITS_REJECTED ─▶ [match] ─▶ edit ─▶ outbox ─▶ the stream that refused it
//	      ▲                               │ acknowledgements
//	      └──────── delete ◀── remover ◀──┘
//
// When ctx ends it stops reading, and waits up to grace for what is under way.
func redrive(ctx context.Context, conn *nats.Conn, js jetstream.JetStream, log zerolog.Logger, opts options,
	list io.Writer, out *progress.Bar) (count *counts, err error) {
	count = &counts{dryRun: opts.dryRun}
	rejected, info, err := rejects.Open(ctx, js, opts.namespace, cmp.Or(opts.stream, "*"))
	if err != nil || rejected == nil {
		count.noStream = err == nil
		return count, err
	}
	acks, giveUp := program.Outlive(ctx, grace)
	defer giveUp()
	r := &redriver{
		options: opts, js: js, rejected: rejected, log: log, list: list, bar: out, count: count,
		maxBody: int(conn.MaxPayload()), targets: targets{js: js, subject: opts.subject}, start: time.Now(),
		warnings: map[string]bool{},
	}
	if opts.dryRun {
		return count, withoutInterrupt(ctx, r.readAll(ctx, info))
	}
	finish := &remover{js: js, rejected: rejected, outcomes: make(chan outcome), count: count, bar: out}
	finish.start(acks)
	r.reportOutcome = func(what outcome) {
		select {
		case finish.outcomes <- what:
		case <-acks.Done():
		}
	}
	r.pub = outbox.Start(acks, conn, log, "", func(int) { count.messages++ })
	err = withoutInterrupt(ctx, r.readAll(ctx, info))
	count.cut = ctx.Err() != nil
	cause := r.pub.Close()
	close(finish.outcomes)
	finish.wait()
	count.took = time.Since(r.start)
	unknown := count.unknown()
	count.countSomeLeft("not acknowledged: run it again", unknown)
	switch {
	case cause != nil && !errors.Is(cause, context.Canceled):
		return count, fmt.Errorf("%w (%d rejects are not acknowledged: run it again)", cause, unknown)
	case err != nil:
		return count, err
	case unknown > 0:
		return count, fmt.Errorf("interrupted: %d rejects are not acknowledged within %v: run it again, none "+
			"counts twice", unknown, grace)
	case count.kept > 0:
		return count, fmt.Errorf("%d rejects are stored again and could not be removed from %s: %w", count.kept,
			rejects.Stream, count.keptWhy)
	}
	return count, nil
}

// withoutInterrupt drops the error of an interrupt.
func withoutInterrupt(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// readAll handles each of the namespace's rejects that HITS_REJECTED holds at the start. Later ones, such as
// a reject that is refused again, are for the next run.
func (r *redriver) readAll(ctx context.Context, info *jetstream.StreamInfo) error {
	filter := rejects.Subject(r.namespace, cmp.Or(r.stream, "*"))
	var total uint64
	for _, n := range info.State.Subjects {
		total += n
	}
	if total == 0 {
		return nil
	}
	r.bar.Expect(int64(total))
	messages := rejects.NewMessageReader(r.rejected, filter, info.State)
	for {
		m, more, err := messages.Read(ctx)
		switch {
		case err != nil:
			return err
		case !more:
			return nil
		case !m.Known || m.Namespace != r.namespace:
			r.count.found++
			r.count.matching++
			r.count.countLeft("not written by ingest in this namespace")
			continue
		}
		if err := r.handle(ctx, newReject(m)); err != nil {
			return err
		}
	}
}

func (r *redriver) handle(ctx context.Context, one *reject) error {
	r.count.found++
	if len(r.reasons) > 0 && !slices.Contains(r.reasons, one.Reason) || r.stream != "" && one.Stream != r.stream {
		r.bar.Add(1)
		return nil
	}
	r.count.matching++
	why, m, err := r.prepare(ctx, one)
	if err != nil {
		return err
	}
	if why != "" {
		r.count.countLeft(why)
		r.bar.Add(1)
		return nil
	}
	if r.dryRun {
		return r.listReject(one)
	}
	if r.rate > 0 {
		if err := r.pace(ctx); err != nil {
			r.count.countLeft("not sent yet")
			return err
		}
	}
	if err := r.pub.Submit(m); err != nil {
		return err
	}
	return ctx.Err()
}

// prepare returns what to send, or why not.
func (r *redriver) prepare(ctx context.Context, one *reject) (why string, m *outbox.Message, err error) {
	if one.isIncrement() {
		return fmt.Sprintf("%s (an increment of one of NATS's own counters, which no hit can stand for: publish hits "+
			"in place of it)", one.Reason), nil, nil
	}
	if refused := one.expectedRefusal(r.ts, time.Now()); refused != "" {
		if len(r.reasons) == 0 {
			return fmt.Sprintf("%s (%s; name it with --reason to send it all the same)", one.Reason, refused), nil, nil
		}
		r.warn(fmt.Sprintf("%s: %s, unless the settings or the rules of ingest have changed", one.Reason, refused))
	}
	if one.Size > len(one.Body) {
		return fmt.Sprintf("%s (only the first %d of %d bytes fitted into a message: its producer can publish it "+
			"again)", one.Reason, len(one.Body), one.Size), nil, nil
	}
	body, err := one.bodyToPublish(r.ts)
	if err != nil {
		return fmt.Sprintf("%s (%v)", one.Reason, err), nil, nil
	}
	to, err := r.targets.find(ctx, one.Stream)
	if err != nil || to.why != "" {
		return to.why, nil, err
	}
	once := onceOf(one, to.pattern)
	if len(body)+rejects.HeaderSize(once.Header()) > r.maxBody {
		return fmt.Sprintf("%s (with its headers larger than a message of the server: raise max_payload)", one.Reason),
			nil, nil
	}
	once.Done = func(f outbox.Outcome) { r.reportOutcome(outcome{f, one, once.ID}) }
	m = outbox.NewMessage()
	m.Hits, m.Once, m.Body = 1, once, append(m.Body, body...)
	return "", m, nil
}

func (r *redriver) warn(text string) {
	if !r.warnings[text] {
		r.warnings[text] = true
		r.log.Warn().Msg(text)
	}
}

func (r *redriver) pace(ctx context.Context) error {
	due := r.start.Add(time.Duration(float64(r.paced) / r.rate * float64(time.Second)))
	r.paced++
	return wait.Sleep(ctx, time.Until(due))
}

const (
	maxListed  = 100 // rejects that --dry-run shows
	shownBytes = 80  // of the body of each
)

func (r *redriver) listReject(one *reject) error {
	r.count.would++
	r.listedSoFar++
	if r.listedSoFar > maxListed {
		if r.listedSoFar == maxListed+1 {
			_, err := fmt.Fprintf(r.list, "… and more: only the first %d are listed\n", maxListed)
			return err
		}
		return nil
	}
	body, more := hit.HideUnique(one.Body), ""
	if len(body) > shownBytes {
		body, more = body[:shownBytes], "…"
	}
	_, err := fmt.Fprintf(r.list, "%s\t%s %d:%d\t%s\t%q%s\n", one.Reason, one.Stream, one.Seq, one.Item,
		strings.ToValidUTF8(one.Detail, "?"), body, more)
	return err
}
