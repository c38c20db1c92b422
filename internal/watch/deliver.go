package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
)

const (
	// askedMost bounds the pause that a target may ask for.
	askedMost = time.Hour
	// fetchFor is how long one request waits for a message.
	fetchFor = 10 * time.Second
	// settleWithin bounds an acknowledgement.
	settleWithin = 2 * time.Second
)

// notice is what a target is told.
type notice struct {
	id string
	Said
}

// body is the notice as JSON.
func (n notice) body() []byte {
	data, err := json.Marshal(struct {
		ID string `json:"id"`
		Said
	}{n.id, n.Said})
	if err != nil {
		panic("a notice cannot be encoded: " + err.Error()) // it has texts, numbers and times alone
	}
	return data
}

// teller tells one target.
type teller interface {
	tell(ctx context.Context, n notice) error
}

// laterError is an error of a target that says when to try again.
type laterError struct {
	after time.Duration
	err   error
}

func (e *laterError) Error() string { return e.err.Error() }
func (e *laterError) Unwrap() error { return e.err }

// errGone means that the target wants to hear nothing more.
var errGone = errors.New("410 Gone: the target wants no more of them")

// courier brings the changes of one target. It has a consumer on the server for each lane, which all processes share:
// the server gives out one message of a lane at a time, and the next one when that is acknowledged.
type courier struct {
	log     *log
	target  *Target
	teller  teller
	timeout time.Duration // of one attempt
	giveUp  time.Duration // after which a change is no longer tried

	patience patience
	metrics  *metrics
	out      zerolog.Logger
}

// consumerName is the durable consumer of a target's lane.
func consumerName(target string, lane int) string { return target + "-" + strconv.Itoa(lane) }

// targetOf returns the target of a consumer.
func targetOf(consumer string) string {
	at := strings.LastIndexByte(consumer, '-')
	if at < 0 {
		return consumer
	}
	return consumer[:at]
}

// open makes the consumers that are missing. A target that is new hears of what changes from now on.
func (c *courier) open(ctx context.Context) ([]jetstream.Consumer, error) {
	out := make([]jetstream.Consumer, lanes)
	group, gctx := errgroup.WithContext(ctx)
	for lane := range lanes {
		group.Go(func() (err error) {
			out[lane], err = c.log.js.CreateOrUpdateConsumer(gctx, StreamName(c.log.namespace), jetstream.ConsumerConfig{
				Durable: consumerName(c.target.Name, lane), Description: "tallyroll watch: what the target " + c.target.Name + " is told",
				FilterSubject: stateSubjects(c.log.namespace, strconv.Itoa(lane)), DeliverPolicy: jetstream.DeliverNewPolicy,
				AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.patience.ack, MaxAckPending: 1, MaxDeliver: -1,
			})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("make the consumers of target %s: %w", c.target.Name, err)
	}
	return out, nil
}

// run tells the target until ctx ends.
func (c *courier) run(ctx context.Context, consumers []jetstream.Consumer) error {
	group, gctx := errgroup.WithContext(ctx)
	for lane, consumer := range consumers {
		group.Go(func() error { return c.serve(gctx, consumer, lane) })
	}
	return group.Wait()
}

// serve tells what is in one lane.
func (c *courier) serve(ctx context.Context, consumer jetstream.Consumer, lane int) error {
	for ctx.Err() == nil {
		// The library gives the wait for an answer a deadline of its own, so ctx can end it at once.
		bounded, cancel := context.WithTimeout(ctx, fetchFor)
		batch, err := consumer.Fetch(1, jetstream.FetchContext(bounded))
		if err == nil {
			for m := range batch.Messages() {
				c.settle(ctx, m)
			}
			err = batch.Error()
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, jetstream.ErrNoMessages):
		case errors.Is(err, jetstream.ErrConsumerDeleted), errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrConsumerDoesNotExist):
			return fmt.Errorf("the consumer of target %s, lane %d: %w", c.target.Name, lane, err)
		default:
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
	return nil
}

// settle tells one change, or leaves it for later.
func (c *courier) settle(ctx context.Context, m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		return // no message of a stream
	}
	settle := func(do func(context.Context) error) {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
		defer cancel()
		if err := do(bounded); err != nil {
			c.out.Debug().Err(err).Str("target", c.target.Name).Msg("not acknowledged: it is told again, with the same id")
		}
	}
	var r Record
	if json.Unmarshal(m.Data(), &r) != nil || !c.concerns(&r) {
		settle(m.DoubleAck)
		return
	}
	n := notice{identify(meta.Sequence.Stream, meta.Timestamp), r.Said}
	bounded, cancel := context.WithTimeout(ctx, c.timeout)
	began := time.Now()
	err = c.teller.tell(bounded, n)
	cancel()
	if err == nil {
		settle(m.DoubleAck)
		c.metrics.delivered(c.target.Name, "delivered", began, meta.Timestamp)
		return
	}
	if ctx.Err() != nil { // this process stops: another one may try at once
		settle(func(context.Context) error { return m.Nak() })
		return
	}
	line := func(e *zerolog.Event) *zerolog.Event {
		return e.Err(err).Str("target", c.target.Name).Str("id", n.id).Str("rule", n.Rule).Str("state", string(n.State)).Uint64("attempt", meta.NumDelivered)
	}
	if errors.Is(err, errGone) || time.Since(meta.Timestamp) > c.giveUp {
		settle(func(context.Context) error { return m.TermWithReason("given up") })
		c.metrics.delivered(c.target.Name, "given_up", began, meta.Timestamp)
		line(c.out.Error()).Msg("a change was not told, and is not tried any more (WATCH_GIVE_UP)")
		return
	}
	pause := c.patience.backoff(meta.NumDelivered)
	var told *laterError
	if errors.As(err, &told) && told.after > pause {
		pause = min(told.after, askedMost)
	}
	settle(func(context.Context) error { return m.NakWithDelay(pause) })
	c.metrics.delivered(c.target.Name, "failed", began, meta.Timestamp)
	event := c.out.Debug()
	if meta.NumDelivered == 1 || meta.NumDelivered%20 == 0 {
		event = c.out.Warn()
	}
	line(event).Stringer("again_in", pause.Round(time.Millisecond)).Msg("a change was not told: it is tried again")
}

// concerns reports whether the target is to hear of a change.
func (c *courier) concerns(r *Record) bool {
	if r.Quiet || r.State == "" || !c.target.wants(r.State) {
		return false
	}
	for _, name := range r.To {
		if name == c.target.Name {
			return true
		}
	}
	return false
}

// backoff is the pause after so many attempts. Of many that failed at once, not all try again at once.
func (p patience) backoff(attempts uint64) time.Duration {
	pause := p.retryMost
	if attempts <= 16 { // so that the shift does not overflow
		pause = min(p.retryMost, p.retryFirst<<(max(1, attempts)-1))
	}
	return pause*4/5 + rand.N(pause/5)
}

// dropOthers deletes the consumers of targets that no file has any more.
func dropOthers(ctx context.Context, l *log, book *Book) (dropped []string, err error) {
	stream, err := l.js.Stream(ctx, StreamName(l.namespace))
	if err != nil {
		return nil, err
	}
	names := stream.ConsumerNames(ctx)
	for name := range names.Name() {
		target := targetOf(name)
		if t := book.target(target); t != nil && t.Alertmanager == "" || !durable(name) {
			continue
		}
		if err := stream.DeleteConsumer(ctx, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return dropped, err
		}
		dropped = append(dropped, name)
	}
	return dropped, names.Err()
}

// durable reports whether a consumer is one of a target's lanes: those of readers have names that the library makes.
func durable(name string) bool {
	lane, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	return err == nil && lane >= 0 && lane < lanes && strings.Contains(name, "-")
}
