package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/platform/wait"
	"tallyroll/internal/watch/history"
)

const (
	// maxRetryAfter bounds the pause that a target's Retry-After sets.
	maxRetryAfter = time.Hour
	// maxWaiting bounds the changes waiting for one target, some 40 MB. At the bound, reading pauses.
	maxWaiting = 50_000
)

// delivery delivers changes to one target while this process has the target's lease. The lease is the
// target's progress: a process that has not read the last one cannot store the next. A change waits only for
// earlier ones of its rule and key. A process that has lost the lease may still deliver a change, which the
// next holder may repeat, but never one before an earlier change of its rule and key.
type delivery struct {
	stream   *stateStream
	process  string // unique among processes; in leases
	target   *Target
	notifier notifier
	timeout  time.Duration // of one attempt
	giveUp   time.Duration // after which a change is given up

	timeouts timeouts
	metrics  *metrics
	log      zerolog.Logger
}

// openProgress stores the progress of a new target, which starts after the stream's message last.
func (d *delivery) openProgress(ctx context.Context, last uint64) error {
	kind := "delivery." + d.target.Name
	err := d.stream.reread(ctx, history.Subject(d.stream.namespace, kind))
	if current := d.stream.readLease(d.target.Name); err == nil && (current.seq == 0 || current.Gone) {
		err = d.stream.replaceMessage(ctx, kind, progress{Cursor: last}, current.seq)
	}
	if err != nil && !errors.Is(err, errConflict) { // another process may have been first
		return fmt.Errorf("store the progress of target %s: %w", d.target.Name, err)
	}
	return nil
}

var errYield = errors.New("the target does not answer: another process may try")

func (d *delivery) run(ctx context.Context) error {
	ticker := time.NewTicker(d.timeouts.lease / 6)
	defer ticker.Stop()
	var pausedUntil time.Time // until then, others may take the lease
	for ctx.Err() == nil {
		if current := d.stream.readLease(d.target.Name); d.isVacant(current) && time.Now().After(pausedUntil) {
			err := d.deliver(ctx, current)
			if errors.Is(err, errYield) {
				pausedUntil = time.Now().Add(d.timeouts.lease)
			}
			d.log.Debug().Err(err).Str("target", d.target.Name).Msg("delivery by this process has ended")
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return nil
}

func (d *delivery) isVacant(current lease) bool {
	return !current.Gone && (current.By == "" || current.By == d.process ||
		time.Since(current.readAt) > d.timeouts.lease)
}

// deliver acquires the lease, and delivers until it is lost, or ctx ends.
func (d *delivery) deliver(ctx context.Context, current lease) error {
	session := &deliverySession{
		delivery: d, start: current.progress, cursor: current.Cursor, leaseSeq: current.seq,
		queues: make(map[string][]*entry), progressChanged: make(chan struct{}, 1), spaceFreed: make(chan struct{}, 1),
		firstSlots: make(chan struct{}, maxConcurrent), retrySlots: make(chan struct{}, maxConcurrent),
	}
	if err := session.storeProgress(ctx, d.process); err != nil {
		return err
	}
	defer d.metrics.undeliveredAge.DeleteLabelValues(d.target.Name)
	defer d.metrics.waiting.DeleteLabelValues(d.target.Name)
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return session.keepLease(gctx) })
	group.Go(func() error { return session.readChanges(gctx, group) })
	err := group.Wait()
	if !errors.Is(err, errConflict) {
		_ = session.storeProgress(context.WithoutCancel(ctx),
			"") // if this fails, another process takes the lease when it expires
	}
	return err
}

// deliverySession delivers while this process has the target's lease.
type deliverySession struct {
	*delivery
	start                       progress
	firstSlots, retrySlots      chan struct{} // slots of first attempts, and of those after one that failed
	progressChanged, spaceFreed chan struct{} // have a value if the progress is to be stored, and if fewer changes wait

	mu            sync.Mutex
	cursor        uint64              // the last message that was read, or that of start if it is later
	readSeq       uint64              // the last message that was read
	queues        map[string][]*entry // waiting changes by subject; the first is being delivered
	waiting       int                 // changes in queues
	silentSince   time.Time           // since when the target has not answered; zero: it has
	leaseStoredAt time.Time           // when the lease was last stored
	warnedAt      time.Time           // when a failure was last logged

	storeMu  sync.Mutex
	leaseSeq uint64 // of the lease
}

func (s *deliverySession) storeProgress(ctx context.Context, process string) error {
	s.storeMu.Lock()
	defer s.storeMu.Unlock()
	s.mu.Lock()
	p := progress{By: process, Cursor: s.cursor, Replaces: s.leaseSeq}
	for _, seq := range s.start.Waiting {
		if seq > s.readSeq {
			p.Waiting = append(p.Waiting, seq)
		}
	}
	for _, q := range s.queues {
		for _, e := range q {
			p.Waiting = append(p.Waiting, e.seq)
		}
	}
	s.mu.Unlock()
	slices.Sort(p.Waiting)
	bounded, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	began := time.Now()
	if err := s.stream.replaceMessage(bounded, "delivery."+s.target.Name, p, s.leaseSeq); err != nil {
		return err
	}
	s.leaseSeq = s.stream.readLease(s.target.Name).seq
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaseStoredAt = began
	return nil
}

// holdsLease reports whether this process has stored the lease lately.
func (s *deliverySession) holdsLease() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.leaseStoredAt) < s.timeouts.lease/2
}

// keepLease stores the progress when it changes, and often enough to keep the lease.
func (s *deliverySession) keepLease(ctx context.Context) error {
	ticker := time.NewTicker(s.timeouts.lease / 3)
	defer ticker.Stop()
	for {
		s.updateGauges()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-s.progressChanged:
		}
		if err := s.storeProgress(ctx, s.process); err != nil {
			return err
		}
		s.mu.Lock()
		silent := s.silentSince
		s.mu.Unlock()
		if !silent.IsZero() && time.Since(silent) > s.timeouts.silence {
			return errYield
		}
	}
}

func (s *deliverySession) updateGauges() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.stream.now()
	age := time.Duration(0)
	for _, q := range s.queues {
		age = max(age, now.Sub(q[0].change().Stored))
	}
	s.metrics.undeliveredAge.WithLabelValues(s.target.Name).Set(age.Seconds())
	s.metrics.waiting.WithLabelValues(s.target.Name).Set(float64(s.waiting))
}

// readChanges reads the target's changes, starting with the first that waits.
func (s *deliverySession) readChanges(ctx context.Context, group *errgroup.Group) error {
	startAfter := s.start.Cursor
	if w := s.start.Waiting; len(w) > 0 {
		startAfter = w[0] - 1
	}
	name := history.StreamName(s.stream.namespace)
	consumer, err := s.stream.js.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{history.Subject(s.stream.namespace, "state.>")},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy, OptStartSeq: startAfter + 1,
		InactiveThreshold: history.ConsumerTimeout,
	})
	if err != nil {
		return fmt.Errorf("read the stream of states: %w", err)
	}
	return history.Read(ctx, consumer, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		// The progress covers it, so the cache must have it, too, to notice if NATS loses it.
		s.stream.apply(m.Subject(), m.Data(), meta.Sequence.Stream, meta.Timestamp)
		e := &entry{Record{}, meta.Sequence.Stream, meta.Timestamp}
		_ = json.Unmarshal(m.Data(), &e.Record) // a foreign message concerns no target
		if s.enqueue(m.Subject(), e) {
			group.Go(func() error { return s.deliverQueue(ctx, m.Subject()) })
		}
		for s.isFull() {
			select {
			case <-ctx.Done():
				return
			case <-s.spaceFreed:
			}
		}
	})
}

// enqueue queues a change if the target is a recipient. first means that its queue was empty.
func (s *deliverySession) enqueue(subject string, e *entry) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cursor, s.readSeq = max(s.cursor, e.seq), e.seq
	if s.start.includes(e.seq) || !s.isRecipient(&e.Record) {
		return false
	}
	q := s.queues[subject]
	if n := len(q); n > 0 && q[n-1].change().ID() == e.change().ID() {
		q[n-1] = e // the stream has it here now
		return false
	}
	q = append(q, e)
	s.waiting++
	if _, most := s.stream.limits(); most > 0 && len(q) > most+1 { // the stream has dropped it, too
		q = slices.Delete(q, 1, 2)
		s.waiting--
	}
	s.queues[subject] = q
	return len(q) == 1
}

func (s *deliverySession) isFull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting >= maxWaiting
}

func (d *delivery) isRecipient(r *Record) bool {
	return !r.Quiet && r.State != "" && d.target.wants(r.State) && slices.Contains(r.To, d.target.Name)
}

// dequeue removes the first change of a rule and key, and returns the next, or nil.
func (s *deliverySession) dequeue(subject string) (next *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	if q := s.queues[subject][1:]; len(q) > 0 {
		s.queues[subject], next = q, q[0]
	} else {
		delete(s.queues, subject)
	}
	for _, c := range []chan struct{}{s.progressChanged, s.spaceFreed} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	return next
}

// deliverQueue delivers the waiting changes of one rule and key in order.
func (s *deliverySession) deliverQueue(ctx context.Context, subject string) error {
	s.mu.Lock()
	e := s.queues[subject][0]
	s.mu.Unlock()
	slots := s.firstSlots
	var refusedSince time.Time // since when the target has refused changes of this rule and key
	for e != nil {
		select {
		case <-ctx.Done():
			return nil
		case slots <- struct{}{}:
		}
		if !s.holdsLease() {
			if err := s.storeProgress(ctx, s.process); err != nil {
				return err
			}
		}
		err := s.attemptChange(ctx, e)
		<-slots
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			e, slots, refusedSince = s.dequeue(subject), s.firstSlots, time.Time{}
			continue
		}
		var status *statusError
		answered := errors.As(err, &status)
		switch {
		case !answered || !status.isRefusal():
			refusedSince = time.Time{}
		case refusedSince.IsZero():
			refusedSince = time.Now()
		}
		age := s.stream.now().Sub(e.change().Stored)
		reason := ""
		switch {
		case answered && status.code == http.StatusGone, !refusedSince.IsZero() &&
			time.Since(refusedSince) >= min(s.timeouts.refusal, s.giveUp):
			reason = err.Error()
		case age > s.giveUp:
			reason = "not taken within WATCH_GIVE_UP"
		}
		if reason != "" {
			if err := s.giveUpChange(ctx, e, err, reason); err != nil {
				return err
			}
			// Store that first. Otherwise another process could deliver it after the next one.
			e = s.dequeue(subject)
			if err := s.storeProgress(ctx, s.process); err != nil {
				return err
			}
			continue
		}
		pause := s.timeouts.retryPause(age)
		if answered && status.retryAfter > pause {
			pause = min(status.retryAfter, maxRetryAfter)
		}
		s.reportFailure(e, err, age, pause)
		slots = s.retrySlots
		_ = wait.Sleep(ctx, pause)
	}
	return nil
}

func (s *deliverySession) attemptChange(ctx context.Context, e *entry) error {
	bounded, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	began := time.Now()
	err := s.notifier.notify(bounded, notification{e.change().ID(), e.KeyState})
	var status *statusError
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.silentSince = time.Time{}
		s.metrics.observeDelivery(s.target.Name, began, s.stream.now().Sub(e.change().Stored))
	case errors.As(err, &status):
		s.silentSince = time.Time{}
	case s.silentSince.IsZero():
		s.silentSince = time.Now()
	}
	return err
}

// giveUpChange records in the stream, log and metrics that a change is given up.
func (s *deliverySession) giveUpChange(ctx context.Context, e *entry, failure error, reason string) error {
	data, err := json.Marshal(history.GiveUp{
		Position: e.change().Seq,
		GivenUp:  history.GivenUp{Target: s.target.Name, Reason: reason, At: s.stream.now().UTC()},
	})
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	subject := history.Subject(s.stream.namespace, "given_up."+s.target.Name)
	if _, err := s.stream.js.Publish(bounded, subject, data); err != nil {
		return err
	}
	s.metrics.deliveries.WithLabelValues(s.target.Name, "given_up").Inc()
	s.describeChange(s.log.Error(), e, failure).Msg("change given up: no longer delivered")
	return nil
}

// reportFailure counts a failed attempt and logs it, the first per minute as a warning.
func (s *deliverySession) reportFailure(e *entry, err error, age, pause time.Duration) {
	s.metrics.deliveries.WithLabelValues(s.target.Name, "failed").Inc()
	s.mu.Lock()
	event := s.log.Debug()
	if s.warnedAt.IsZero() || time.Since(s.warnedAt) > time.Minute {
		s.warnedAt = time.Now()
		event = s.log.Warn()
	}
	s.mu.Unlock()
	s.describeChange(event, e, err).Stringer("age", age.Round(time.Millisecond)).Stringer("again_in",
		pause.Round(time.Millisecond)).Msg("delivery failed: retrying")
}

func (s *deliverySession) describeChange(event *zerolog.Event, e *entry, err error) *zerolog.Event {
	return event.Err(err).Str("target", s.target.Name).Str("id", e.change().ID()).Str("rule", e.Rule).Str("state",
		string(e.State))
}
