package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
)

const (
	// askedMost bounds the pause that a target may ask for.
	askedMost = time.Hour
	// atOnce bounds a target's concurrent first attempts, and also its retries: failures block nothing else.
	atOnce = 8
	// waitingMost bounds the changes waiting for one target, some 40 MB. Then reading waits.
	waitingMost = 50_000
)

type notice struct {
	id string
	Said
}

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

type teller interface {
	tell(ctx context.Context, n notice) error
}

// statusError is a target's answer other than 2xx. It quotes nothing that the target wrote, because that may
// contain the URL, which may be a secret.
type statusError struct {
	code  int
	after time.Duration // the target's Retry-After; 0: none
}

func (e *statusError) Error() string {
	text := strconv.Itoa(e.code) + " " + http.StatusText(e.code)
	switch {
	case e.code/100 == 3:
		text += ": redirects are not followed"
	case e.code == http.StatusGone:
		text += ": the target wants no more of them"
	}
	return text
}

// refused reports whether the target refuses the change itself, so that a retry hardly helps.
func (e *statusError) refused() bool {
	switch e.code {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// delivery brings one target its changes. One process at a time does, the one with the lease, which is the
// target's progress: a process that has not read the last one cannot store the next. A change waits only for
// earlier ones of its own rule and key. After it has lost the lease, a process may still deliver a change, or
// one that the next process repeats, but never one before those that come first.
type delivery struct {
	log     *log
	name    string // of this process, in leases
	target  *Target
	teller  teller
	timeout time.Duration // of one attempt
	giveUp  time.Duration // after which a change is no longer tried
	perKey  int           // changes of one key that the stream keeps; less than 1: all

	patience patience
	metrics  *metrics
	out      zerolog.Logger
}

// open stores the progress of a new target, which starts after the message last of the stream.
func (d *delivery) open(ctx context.Context, last uint64) error {
	kind := "delivery." + d.target.Name
	err := d.log.lookAgain(ctx, subjectFor(d.log.namespace, kind))
	if held := d.log.lease(d.target.Name); err == nil && (held.seq == 0 || held.Gone) {
		err = d.log.replace(ctx, kind, progress{Cursor: last}, held.seq)
	}
	if err != nil && !errors.Is(err, errOvertaken) { // another process may have been first
		return fmt.Errorf("store the progress of target %s: %w", d.target.Name, err)
	}
	return nil
}

var errYield = errors.New("the target does not answer: another process may try")

func (d *delivery) run(ctx context.Context) error {
	ticker := time.NewTicker(d.patience.seat / 6)
	defer ticker.Stop()
	var rested time.Time // before, others may take the lease
	for ctx.Err() == nil {
		if held := d.log.lease(d.target.Name); d.vacant(held) && time.Now().After(rested) {
			err := d.deliver(ctx, held)
			if errors.Is(err, errYield) {
				rested = time.Now().Add(d.patience.seat)
			}
			d.out.Debug().Err(err).Str("target", d.target.Name).Msg("this process delivers no more")
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return nil
}

func (d *delivery) vacant(held lease) bool {
	return !held.Gone && (held.By == "" || held.By == d.name || time.Since(held.heard) > d.patience.seat)
}

// deliver acquires the lease, and delivers until it is lost, or ctx ends.
func (d *delivery) deliver(ctx context.Context, held lease) error {
	t := &tenure{
		delivery: d, start: held.progress, cursor: held.Cursor, seq: held.seq, queues: make(map[string][]*entry), dirty: make(chan struct{}, 1),
		space: make(chan struct{}, 1), first: make(chan struct{}, atOnce), further: make(chan struct{}, atOnce),
	}
	if err := t.store(ctx, d.name); err != nil {
		return err
	}
	defer d.metrics.undelivered.DeleteLabelValues(d.target.Name)
	defer d.metrics.waiting.DeleteLabelValues(d.target.Name)
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.keep(gctx) })
	group.Go(func() error { return t.read(gctx, group) })
	err := group.Wait()
	if !errors.Is(err, errOvertaken) {
		_ = t.store(context.WithoutCancel(ctx), "") // or another process takes the lease when its patience is over
	}
	return err
}

// tenure is the time during which a process has a target's lease.
type tenure struct {
	*delivery
	start          progress
	first, further chan struct{} // slots of first attempts, and of those after one that failed
	dirty, space   chan struct{} // have something if the progress is not stored, and if fewer changes wait

	mu      sync.Mutex
	cursor  uint64              // the last message that was read, or that of start if it is later
	reached uint64              // the last message that was read
	queues  map[string][]*entry // what waits, by subject; the first is being delivered
	waiting int                 // how many do
	silent  time.Time           // since when the target has not answered; zero: it has
	held    time.Time           // when the lease was last stored
	conn    uint64              // over which of the connections to NATS, one after the other
	warned  time.Time           // when a failure was last logged

	storing sync.Mutex
	seq     uint64 // of the lease
}

func (t *tenure) store(ctx context.Context, by string) error {
	t.storing.Lock()
	defer t.storing.Unlock()
	t.mu.Lock()
	p := progress{By: by, Cursor: t.cursor}
	for _, seq := range t.start.Waiting {
		if seq > t.reached {
			p.Waiting = append(p.Waiting, seq)
		}
	}
	for _, q := range t.queues {
		for _, e := range q {
			p.Waiting = append(p.Waiting, e.seq)
		}
	}
	t.mu.Unlock()
	slices.Sort(p.Waiting)
	bounded, cancel := context.WithTimeout(ctx, publishWithin)
	defer cancel()
	began, conn := time.Now(), t.log.js.Conn().Stats().Reconnects
	if err := t.log.replace(bounded, "delivery."+t.target.Name, p, t.seq); err != nil {
		return err
	}
	t.seq = t.log.lease(t.target.Name).seq
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held, t.conn = began, conn
	return nil
}

// sure reports whether this process certainly has the lease, or had it a moment ago. After a reconnect it is
// not, because NATS may have come back with an older copy.
func (t *tenure) sure() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.held) < t.patience.seat/2 && t.conn == t.log.js.Conn().Stats().Reconnects && t.log.js.Conn().IsConnected()
}

// keep stores the progress when it changes, and often enough to keep the lease.
func (t *tenure) keep(ctx context.Context) error {
	ticker := time.NewTicker(t.patience.seat / 3)
	defer ticker.Stop()
	for {
		t.measure()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-t.dirty:
		}
		if err := t.store(ctx, t.name); err != nil {
			return err
		}
		t.mu.Lock()
		silent := t.silent
		t.mu.Unlock()
		if !silent.IsZero() && time.Since(silent) > t.patience.yield {
			return errYield
		}
	}
}

func (t *tenure) measure() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.log.now()
	age := time.Duration(0)
	for _, q := range t.queues {
		age = max(age, now.Sub(q[0].stored))
	}
	t.metrics.undelivered.WithLabelValues(t.target.Name).Set(age.Seconds())
	t.metrics.waiting.WithLabelValues(t.target.Name).Set(float64(t.waiting))
}

// read reads the target's changes, from the first that waits.
func (t *tenure) read(ctx context.Context, group *errgroup.Group) error {
	from := t.start.Cursor
	if w := t.start.Waiting; len(w) > 0 {
		from = w[0] - 1
	}
	consumer, err := t.log.js.OrderedConsumer(ctx, StreamName(t.log.namespace), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subjectFor(t.log.namespace, "state.>")}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from + 1,
		InactiveThreshold: readerGone,
	})
	if err != nil {
		return fmt.Errorf("read the stream of states: %w", err)
	}
	return readAll(ctx, consumer, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		e := &entry{seq: meta.Sequence.Stream, stored: meta.Timestamp}
		_ = json.Unmarshal(m.Data(), &e.Record) // a foreign message concerns no target
		if t.add(m.Subject(), e) {
			group.Go(func() error { return t.serve(ctx, m.Subject()) })
		}
		for t.full() {
			select {
			case <-ctx.Done():
				return
			case <-t.space:
			}
		}
	})
}

// add queues a change that concerns the target. first means that none of its rule and key was waiting.
func (t *tenure) add(subject string, e *entry) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cursor, t.reached = max(t.cursor, e.seq), max(t.reached, e.seq)
	if _, waits := slices.BinarySearch(t.start.Waiting, e.seq); e.seq <= t.start.Cursor && !waits || !t.concerns(&e.Record) {
		return false
	}
	q := append(t.queues[subject], e)
	t.waiting++
	if t.perKey > 0 && len(q) > t.perKey+1 { // the stream has dropped it, too
		q = slices.Delete(q, 1, 2)
		t.waiting--
	}
	t.queues[subject] = q
	return len(q) == 1
}

func (t *tenure) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting >= waitingMost
}

func (d *delivery) concerns(r *Record) bool {
	return !r.Quiet && r.State != "" && d.target.wants(r.State) && slices.Contains(r.To, d.target.Name)
}

// settle removes the first change of a rule and key, and returns the next, or nil.
func (t *tenure) settle(subject string) (next *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting--
	if q := t.queues[subject][1:]; len(q) > 0 {
		t.queues[subject], next = q, q[0]
	} else {
		delete(t.queues, subject)
	}
	for _, c := range []chan struct{}{t.dirty, t.space} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	return next
}

// serve delivers the waiting changes of one rule and key in order.
func (t *tenure) serve(ctx context.Context, subject string) error {
	t.mu.Lock()
	e := t.queues[subject][0]
	t.mu.Unlock()
	slots := t.first
	var refused time.Time // since when the target has refused what the rule and key have
	for e != nil {
		select {
		case <-ctx.Done():
			return nil
		case slots <- struct{}{}:
		}
		if !t.sure() {
			if err := t.store(ctx, t.name); err != nil {
				return err
			}
		}
		err := t.attempt(ctx, e)
		<-slots
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			e, slots, refused = t.settle(subject), t.first, time.Time{}
			continue
		}
		var status *statusError
		answered := errors.As(err, &status)
		switch {
		case !answered || !status.refused():
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		}
		age := t.log.now().Sub(e.stored)
		reason := ""
		switch {
		case answered && status.code == http.StatusGone, !refused.IsZero() && time.Since(refused) >= min(t.patience.refused, t.giveUp):
			reason = err.Error()
		case age > t.giveUp:
			reason = "not taken within WATCH_GIVE_UP"
		}
		if reason != "" {
			if err := t.abandon(ctx, e, err, reason); err != nil {
				return err
			}
			// Store it before the next is delivered: otherwise another process could deliver it afterwards.
			e = t.settle(subject)
			if err := t.store(ctx, t.name); err != nil {
				return err
			}
			continue
		}
		pause := t.patience.backoff(age)
		if answered && status.after > pause {
			pause = min(status.after, askedMost)
		}
		t.failed(e, err, age, pause)
		slots = t.further
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

func (t *tenure) attempt(ctx context.Context, e *entry) error {
	bounded, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	began := time.Now()
	err := t.teller.tell(bounded, notice{identify(e.seq, e.stored), e.Said})
	var status *statusError
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		t.silent = time.Time{}
		t.metrics.delivered(t.target.Name, began, t.log.now().Sub(e.stored))
	case errors.As(err, &status):
		t.silent = time.Time{}
	case t.silent.IsZero():
		t.silent = time.Now()
	}
	return err
}

// abandon records in the stream, log and metrics that a change is given up.
func (t *tenure) abandon(ctx context.Context, e *entry, failure error, reason string) error {
	data, err := json.Marshal(givenUp{e.seq, GivenUp{t.target.Name, reason, t.log.now().UTC()}})
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, publishWithin)
	defer cancel()
	if _, err := t.log.js.Publish(bounded, subjectFor(t.log.namespace, "given_up."+t.target.Name), data); err != nil {
		return err
	}
	t.metrics.deliveries.WithLabelValues(t.target.Name, "given_up").Inc()
	t.line(t.out.Error(), e, failure).Msg("a change was given up: the target does not hear of it any more")
	return nil
}

// failed counts a failed attempt and logs the first of each minute as a warning.
func (t *tenure) failed(e *entry, err error, age, pause time.Duration) {
	t.metrics.deliveries.WithLabelValues(t.target.Name, "failed").Inc()
	t.mu.Lock()
	event := t.out.Debug()
	if t.warned.IsZero() || time.Since(t.warned) > time.Minute {
		t.warned = time.Now()
		event = t.out.Warn()
	}
	t.mu.Unlock()
	t.line(event, e, err).Stringer("age", age.Round(time.Millisecond)).Stringer("again_in", pause.Round(time.Millisecond)).Msg("a change was not told: it is tried again")
}

func (t *tenure) line(event *zerolog.Event, e *entry, err error) *zerolog.Event {
	return event.Err(err).Str("target", t.target.Name).Str("id", identify(e.seq, e.stored)).Str("rule", e.Rule).Str("state", string(e.State))
}

// backoff is the pause before a retry: half of age, within bounds. Jitter spreads simultaneous failures.
func (p patience) backoff(age time.Duration) time.Duration {
	pause := min(max(age/2, p.retryFirst), p.retryMost)
	return pause*4/5 + rand.N(pause/5)
}
