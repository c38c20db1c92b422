package redrive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
	"tallyroll/internal/human"
	"tallyroll/internal/outbox"
	"tallyroll/internal/program"
	"tallyroll/internal/progress"
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

// redriver publishes rejects again. The goroutine in walk owns it.
type redriver struct {
	options
	js       jetstream.JetStream
	rejected jetstream.Stream
	log      zerolog.Logger
	list     io.Writer // of --dry-run
	out      *progress.Bar
	pub      *outbox.Sender // nil with --dry-run
	settled  func(fate)
	room     int // bytes of the largest body
	targets  targets
	count    *redriven
	listed   int
	start    time.Time
	paced    int64
	warned   map[string]bool
}

// redrive publishes again the rejects of HITS_REJECTED that opts select:
//
//	HITS_REJECTED ─▶ assembly ─▶ [match] ─▶ remake ─▶ outbox ─▶ the stream that refused it
//	      ▲                                            │ acknowledgements
//	      └───────────────── delete ◀── finisher ◀─────┘
//
// When ctx ends it stops reading, and waits up to grace for what is under way.
func redrive(ctx context.Context, conn *nats.Conn, js jetstream.JetStream, log zerolog.Logger, opts options, list io.Writer, out *progress.Bar) (count *redriven, err error) {
	count = &redriven{dryRun: opts.dryRun}
	rejected, err := js.Stream(ctx, rejects.Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		count.noStream = true
		return count, nil
	case err != nil:
		return count, fmt.Errorf("look at stream %s: %w", rejects.Stream, err)
	}
	acks, giveUp := program.Outlive(ctx, grace)
	defer giveUp()
	r := &redriver{
		options: opts, js: js, rejected: rejected, log: log, list: list, out: out, count: count,
		room: int(conn.MaxPayload()), targets: targets{js: js, subject: opts.subject}, start: time.Now(), warned: map[string]bool{},
	}
	if opts.dryRun {
		return count, ended(ctx, r.walk(ctx))
	}
	finish := &finisher{js: js, rejected: rejected, fates: make(chan fate), count: count, done: func(r *reject) { out.Add(len(r.Positions)) }}
	finish.start(acks)
	r.settled = func(what fate) {
		select {
		case finish.fates <- what:
		case <-acks.Done():
		}
	}
	r.pub = outbox.Start(acks, conn, log, "", func(int) { count.messages++ })
	err = ended(ctx, r.walk(ctx))
	count.cut = ctx.Err() != nil
	cause := r.pub.Close()
	close(finish.fates)
	finish.wait()
	count.took = time.Since(r.start)
	unknown := count.unknown()
	count.leaveSome("not acknowledged: run it again", unknown)
	switch {
	case cause != nil && !errors.Is(cause, context.Canceled):
		return count, fmt.Errorf("%w (%d rejects are not acknowledged: run it again)", cause, unknown)
	case err != nil:
		return count, err
	case unknown > 0:
		return count, fmt.Errorf("interrupted: %d rejects are not acknowledged within %v: run it again, none counts twice", unknown, grace)
	case count.kept > 0:
		return count, fmt.Errorf("%d rejects are stored again and could not be removed from %s: %w", count.kept, rejects.Stream, count.keptWhy)
	}
	return count, nil
}

// ended drops the error of an interrupt.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (r *redriver) each(ctx context.Context, one *reject) error {
	r.count.found++
	if len(r.reasons) > 0 && !slices.Contains(r.reasons, one.Reason) || r.stream != "" && one.Stream != r.stream {
		r.out.Add(len(one.Positions))
		return nil
	}
	r.count.matching++
	why, m, err := r.judge(ctx, one)
	if err != nil {
		return err
	}
	if why != "" {
		r.count.leave(why)
		r.out.Add(len(one.Positions))
		return nil
	}
	if r.dryRun {
		return r.show(one)
	}
	if r.rate > 0 {
		if err := r.pace(ctx); err != nil {
			r.count.leave("not sent yet")
			return err
		}
	}
	if err := r.pub.Submit(m); err != nil {
		return err
	}
	return ctx.Err()
}

// judge returns what to send, or why not.
func (r *redriver) judge(ctx context.Context, one *reject) (why string, m *outbox.Message, err error) {
	if refused := one.helps(r.ts, time.Now()); refused != "" {
		if len(r.reasons) == 0 {
			return fmt.Sprintf("%s (%s; name it with --reason to send it all the same)", one.Reason, refused), nil, nil
		}
		r.warn(fmt.Sprintf("%s: %s, unless the settings or the rules of ingest have changed", one.Reason, refused))
	}
	body, err := one.publishable(r.ts)
	if err != nil {
		return fmt.Sprintf("%s (%v)", one.Reason, err), nil, nil
	}
	to, err := r.targets.find(ctx, one.Stream)
	if err != nil || to.why != "" {
		return to.why, nil, err
	}
	once := address(one, to.pattern)
	if len(body)+rejects.HeaderSize(once.Header()) > r.room {
		return fmt.Sprintf("%s (larger than a message of the server beside its headers: raise max_payload)", one.Reason), nil, nil
	}
	once.Settled = func(f outbox.Fate) { r.settled(fate{f, one, once.ID}) }
	m = outbox.NewMessage()
	m.Hits, m.Once, m.Body = 1, once, append(m.Body, body...)
	return "", m, nil
}

func (r *redriver) warn(text string) {
	if !r.warned[text] {
		r.warned[text] = true
		r.log.Warn().Msg(text)
	}
}

func (r *redriver) pace(ctx context.Context) error {
	due := r.start.Add(time.Duration(float64(r.paced) / r.rate * float64(time.Second)))
	r.paced++
	select {
	case <-time.After(time.Until(due)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	maxListed  = 100 // rejects that --dry-run shows
	shownBytes = 80  // of the body of each
)

func (r *redriver) show(one *reject) error {
	r.count.would++
	r.listed++
	if r.listed > maxListed {
		if r.listed == maxListed+1 {
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

// redriven counts what became of the rejects. It is safe for concurrent use.
type redriven struct {
	mu       sync.Mutex
	noStream bool // there is no HITS_REJECTED
	dryRun   bool
	cut      bool // an interrupt came before all were read
	found    int64
	matching int64
	would    int64 // with --dry-run: would be sent
	again    int64 // sent again by this run
	before   int64 // had been stored by another one
	left     map[string]int64
	kept     int64 // sent, but not removed from HITS_REJECTED
	keptWhy  error
	messages int64
	took     time.Duration
}

func (d *redriven) leave(why string) { d.leaveSome(why, 1) }

func (d *redriven) leaveSome(why string, n int64) {
	if n == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == nil {
		d.left = map[string]int64{}
	}
	d.left[why] += n
}

func (d *redriven) sent(before bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if before {
		d.before++
		return
	}
	d.again++
}

func (d *redriven) stays(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kept++
	d.keptWhy = why
}

// unknown is the number of rejects that were sent and whose fate is unknown.
func (d *redriven) unknown() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.matching - d.again - d.before
	for _, n := range d.left {
		all -= n
	}
	return all
}

// String is the program's last line.
func (d *redriven) String() string {
	if d.noStream {
		return fmt.Sprintf("no stream %s: nothing was rejected, or ingest has never run", rejects.Stream)
	}
	s := fmt.Sprintf("found %s rejects, %s match; ", count(d.found), count(d.matching))
	if d.dryRun {
		s += fmt.Sprintf("would send %s again", count(d.would))
	} else {
		s += fmt.Sprintf("sent %s again in %s messages in %.2f s", count(d.again), count(d.messages), d.took.Seconds())
		if d.before > 0 {
			s += fmt.Sprintf(", %s had been sent before", count(d.before))
		}
	}
	var all int64
	var why []string
	for _, w := range slices.Sorted(maps.Keys(d.left)) {
		all += d.left[w]
		why = append(why, count(d.left[w])+" "+w)
	}
	s += "; left " + count(all)
	if all > 0 {
		s += ": " + strings.Join(why, ", ")
	}
	if d.cut {
		s += "; interrupted before all were read"
	}
	if d.kept > 0 {
		s += fmt.Sprintf("; %s are sent and still in %s: %v", count(d.kept), rejects.Stream, d.keptWhy)
	}
	return s
}

func count(n int64) string { return human.Thousands(float64(n)) }
