package watch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/human"
)

// patience holds the process's timeouts. Tests shorten them.
type patience struct {
	// seat is how long the leader may be silent before another process takes over.
	seat time.Duration
	// unknown is how long no process must have reached Redis before states are unknown.
	unknown time.Duration
	// gone is how long a process must have led before it ends states of rules that its file lacks: the
	// previous leader may have had another file, which is just being rolled out.
	gone time.Duration
	// retryFirst and retryMost bound the pause after a failed attempt. It grows with the age of the change.
	retryFirst, retryMost time.Duration
	// refused is how long a target may refuse a change itself before the change is given up.
	refused time.Duration
	// yield is how long a target may not answer a process before another process tries.
	yield time.Duration
}

// patienceFor returns the timeouts for an evaluation interval. outage is as long as as_of may usually lag.
func patienceFor(interval time.Duration) patience {
	return patience{
		seat: max(3*interval, 3*time.Second), unknown: max(5*interval, 5*time.Second), gone: time.Minute,
		retryFirst: time.Second, retryMost: time.Minute, refused: 5 * time.Minute, yield: 15 * time.Second,
	}
}

const (
	publishWithin = 5 * time.Second
	lookWithin    = 4 * time.Second
)

// evaluator evaluates all rules at each tick while it leads. It belongs to one goroutine.
type evaluator struct {
	log       *log
	eye       eye
	book      *Book
	name      string // unique among processes
	interval  time.Duration
	patience  patience
	maxStates int
	keepAge   time.Duration   // after which the stream expires a record; 0: never
	life      context.Context // of the process: if it ends, leadership is released
	metrics   *metrics
	out       zerolog.Logger
	recalled  []*entry // states that a rolled-back stream lacks

	began   time.Time // when this process could first have received a heartbeat
	seated  time.Time // since when this process leads; zero: it does not
	lastAt  int64     // of the last evaluation, by Redis's clock
	lastWas time.Time // and by this machine's
	said    saying
	warned  string // the leader's fingerprint, if it differs and was logged
	cleaned bool   // the stream has no progress of targets that the file lacks
}

// run evaluates until ctx ends. If the process ends, it releases leadership.
func (e *evaluator) run(ctx context.Context) error {
	e.began = time.Now()
	ticker := time.NewTicker(e.interval)
	defer ticker.Stop()
	for {
		e.tick(ctx)
		select {
		case <-ctx.Done():
			if e.life.Err() != nil {
				e.leave(ctx)
			}
			return nil
		case <-ticker.C:
		}
	}
}

// leave lets another process lead at once.
func (e *evaluator) leave(ctx context.Context) {
	b, seq, _ := e.log.seat()
	if b.By != e.name {
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	b.By = ""
	_ = e.log.replace(bounded, "seat", b, seq) // if this fails, another process takes over after the lease
}

// tick evaluates once, unless another process leads.
//
// The order makes it safe. It reads the last record of each subject, then Redis, then publishes each change
// with the sequence of that record as the expected one. If another process has changed a state since, the
// server refuses the change, so no evaluation overwrites a state that it has not read.
func (e *evaluator) tick(ctx context.Context) {
	b, seat, heard := e.log.seat()
	silent := min(time.Since(heard), time.Since(e.began))
	if b.By != "" && b.By != e.name && !b.Blind && silent < e.patience.seat {
		if !e.seated.IsZero() {
			e.out.Info().Str("by", b.By).Msg("another process leads")
		}
		e.seated = time.Time{}
		e.metrics.standBy()
		e.compareFiles(b)
		return
	}
	noted := e.note()
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, lookWithin)
	seen, err := e.eye.look(bounded, e.book.Rules, noted.kept)
	cancel()
	if ctx.Err() != nil {
		return
	}
	blind := err != nil
	if blind {
		e.metrics.evaluations.WithLabelValues("failed").Inc()
		e.said.warn(e.out, err, "evaluation failed: Redis does not answer")
		if silent < e.patience.unknown {
			return // Redis may return, or another process may reach it
		}
		at := e.guess()
		seen = view{at: at, seen: allUnknown(e.book.Rules, noted.kept, at, reasonBlind)}
	} else {
		e.lastAt, e.lastWas = seen.at, began
	}
	if time.Since(began) > e.patience.seat+lookWithin {
		return // the process stalled: what it read is old
	}
	if err := e.log.replace(ctx, "seat", beat{By: e.name, At: moment(seen.at), File: e.book.Print, Blind: blind, Rules: len(e.book.Rules)}, seat); err != nil {
		if !errors.Is(err, errOvertaken) && ctx.Err() == nil {
			e.said.warn(e.out, err, "evaluation failed: NATS does not store it")
			e.log.foresee(e.changes(noted, seen))
		}
		return
	}
	if e.seated.IsZero() {
		e.seated = began
		if seat == 0 || b.By == e.name || b.File == e.book.Print {
			e.seated = began.Add(-e.patience.gone) // the previous leader had the same file
		}
		e.out.Info().Int("rules", len(e.book.Rules)).Str("file", e.book.Print).Msg("leading: evaluating rules")
	}
	e.metrics.seated.Set(1)
	if !blind {
		e.said.good(e.out, "evaluation recovered")
		e.metrics.evaluated(began)
	}
	if len(e.recalled) > 0 {
		e.recall(ctx, noted)
		return // the next evaluation continues from there
	}
	e.publish(ctx, began, e.changes(noted, seen))
	e.metrics.count(e.log.snapshot())
	if !e.cleaned && time.Since(e.seated) >= e.patience.gone {
		e.clean(ctx)
	}
}

// recall publishes the states that a rolled-back stream lacks. Targets are notified again, with new ids.
func (e *evaluator) recall(ctx context.Context, noted notes) {
	var drafts []draft
	for _, lost := range e.recalled {
		subject := subjectOf(e.log.namespace, lost.Rule, lost.Key)
		known := noted.states[subject]
		if known == nil {
			known = &entry{}
		}
		if lost.State != "" && known.At.Before(lost.At) {
			drafts = append(drafts, draft{subject, known.seq, lost.Record})
		}
	}
	bounded, cancel := context.WithTimeout(ctx, publishWithin)
	defer cancel()
	stored, _, err := e.log.publish(bounded, drafts)
	e.metrics.changes.Add(float64(stored))
	if err != nil {
		e.said.warn(e.out, err, "lost changes not stored again: they are retried")
		return
	}
	e.recalled = nil
	e.out.Warn().Int("changes", stored).Msg("the stream was rolled back: lost changes are stored and delivered again")
}

// clean ends the deliveries to targets that the file lacks, or that are Alertmanagers now.
func (e *evaluator) clean(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, publishWithin)
	defer cancel()
	e.cleaned = true
	for _, name := range e.log.targets() {
		held := e.log.lease(name)
		if t := e.book.target(name); t != nil && t.Alertmanager == "" || held.Gone {
			continue
		}
		if err := e.log.replace(bounded, "delivery."+name, progress{Gone: true}, held.seq); err != nil {
			e.cleaned = false // retried at the next tick
			continue
		}
		e.out.Info().Str("target", name).Msg("target is no longer in WATCH_FILE: its waiting changes are dropped")
	}
}

// publish publishes changes unless the process has stalled since it read Redis.
func (e *evaluator) publish(ctx context.Context, began time.Time, drafts []draft) {
	if len(drafts) == 0 || time.Since(began) > e.patience.seat+lookWithin {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, publishWithin)
	defer cancel()
	stored, lost, err := e.log.publish(bounded, drafts)
	e.metrics.changes.Add(float64(stored))
	if err != nil && ctx.Err() == nil {
		e.said.warn(e.out, err, "changes not stored: they are retried")
	}
	if lost > 0 {
		e.out.Debug().Int("changes", lost).Msg("another process was first")
	}
}

// guess estimates Redis's clock if Redis does not answer: its last reading plus the time since.
func (e *evaluator) guess() int64 {
	if e.lastAt == 0 {
		return time.Now().UnixMilli()
	}
	return e.lastAt + time.Since(e.lastWas).Milliseconds()
}

type notes struct {
	states map[string]*entry
	active map[string][]string // by rule: the keys whose state is not idle
}

func (e *evaluator) note() notes {
	out := notes{e.log.snapshot(), make(map[string][]string)}
	for _, s := range out.states {
		if s.live() && !s.State.calm() && s.Key != "" {
			out.active[s.Rule] = append(out.active[s.Rule], s.Key)
		}
	}
	for _, keys := range out.active {
		slices.Sort(keys)
	}
	return out
}

func (n notes) kept(r *Rule) []string { return n.active[r.Name] }

func (e *evaluator) changes(noted notes, seen view) (out []draft) {
	sighted := make(map[string]bool, len(seen.seen))
	many, open := 0, make(map[*Rule]int)
	for _, r := range e.book.Rules {
		if r.many() {
			many++
			open[r] = len(noted.kept(r))
		}
	}
	share := max(1, e.maxStates/max(1, many)) // so that one rule's keys leave room for those of others
	full := make(map[*Rule]bool)
	add := func(s Sighting) {
		subject := subjectOf(e.log.namespace, s.Rule.Name, s.Key)
		sighted[subject] = true
		before, seq := Record{}, uint64(0)
		if known := noted.states[subject]; known != nil {
			before, seq = known.Record, known.seq
		}
		after, changed := before.next(s)
		switch {
		case changed && s.Rule.many() && s.Key != "" && before.State.calm() && !after.State.calm():
			if open[s.Rule] >= share {
				full[s.Rule] = true
				return
			}
			open[s.Rule]++
		case !changed && before.live() && e.ages(noted.states[subject]):
			after, changed = before, true // the stream must not expire a lasting state
			after.Quiet, after.Previous = true, before.State
		}
		if changed {
			after.By = e.name
			out = append(out, draft{subject, seq, after})
		}
	}
	var wholes []Sighting
	for _, s := range seen.seen {
		if s.Rule.many() && s.Key == "" {
			wholes = append(wholes, s)
			continue
		}
		add(s)
	}
	for _, s := range wholes { // last, because they report whether a key had no room
		if full[s.Rule] {
			s.Verdict, s.Reason = NobodyKnows, reasonStates
		}
		add(s)
	}
	if !e.seated.IsZero() && time.Since(e.seated) >= e.patience.gone {
		for subject, s := range noted.states {
			if s.live() && !sighted[subject] && e.orphan(s) {
				last := s.end(seen.at, "the rule, or this key of it, is not in WATCH_FILE any more")
				last.By = e.name
				out = append(out, draft{subject, s.seq, last})
			}
		}
	}
	return out
}

// orphan reports whether the file no longer has the rule or key of a state without a result. An idle state of a
// key that comes and goes stays until the stream expires it.
func (e *evaluator) orphan(s *entry) bool {
	for _, r := range e.book.Rules {
		if r.Name == s.Rule {
			return !r.many() || !s.State.calm()
		}
	}
	return true
}

// ages reports whether the stream will soon expire a record.
func (e *evaluator) ages(s *entry) bool {
	return s != nil && e.keepAge > 0 && e.log.now().Sub(s.stored) > e.keepAge/2
}

// compareFiles warns if the leader has another file.
func (e *evaluator) compareFiles(b beat) {
	if b.File == e.book.Print {
		e.metrics.fileDiffers.Set(0)
		e.warned = ""
		return
	}
	e.metrics.fileDiffers.Set(1)
	if e.warned != b.File {
		e.warned = b.File
		e.out.Warn().Str("by", b.By).Str("its", b.File).Str("own", e.book.Print).Msg("the leader has another WATCH_FILE than this process: the leader's rules count")
	}
}

// saying logs a problem when it begins, once per minute while it lasts, and when it ends.
type saying struct {
	since time.Time // zero: there is no problem
	last  time.Time // when it was last logged
}

func (s *saying) warn(out zerolog.Logger, err error, message string) {
	if s.since.IsZero() {
		s.since = time.Now()
	}
	if time.Since(s.last) < time.Minute {
		return
	}
	s.last = time.Now()
	out.Warn().Err(err).Msg(message)
}

func (s *saying) good(out zerolog.Logger, message string) {
	if s.since.IsZero() {
		return
	}
	out.Info().Str("after", human.Duration(time.Since(s.since))).Msg(message)
	s.since, s.last = time.Time{}, time.Time{}
}
