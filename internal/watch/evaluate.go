package watch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/watch/history"
)

// evaluator evaluates all rules at each tick while it leads. It belongs to one goroutine.
type evaluator struct {
	stream    *stateStream
	querier   querier
	ruleSet   *RuleSet
	process   string // unique among processes
	interval  time.Duration
	timeouts  timeouts
	maxStates int
	runCtx    context.Context // of the process: if it ends, leadership is released
	metrics   *metrics
	log       zerolog.Logger

	startedAt         time.Time // when this process could first have received a heartbeat
	leaderSince       time.Time // since when this process leads; zero: it does not
	redisTime         int64     // of the last evaluation, by Redis's clock
	redisTimeReadAt   time.Time // and by this machine's
	problems          problemLog
	warnedFingerprint string // the leader's fingerprint, if it differs and was logged
	targetsEnded      bool   // the stream has no progress of targets that the file lacks
}

// run evaluates until ctx ends. If the process ends, it releases leadership.
func (e *evaluator) run(ctx context.Context) error {
	e.startedAt = time.Now()
	ticker := time.NewTicker(e.interval)
	defer ticker.Stop()
	for {
		e.tick(ctx)
		select {
		case <-ctx.Done():
			if e.runCtx.Err() != nil {
				e.releaseLeadership(ctx)
			}
			return nil
		case <-ticker.C:
		}
	}
}

// releaseLeadership lets another process lead at once.
func (e *evaluator) releaseLeadership(ctx context.Context) {
	leader, seq, _ := e.stream.lastHeartbeat()
	if leader.By != e.process {
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	leader.By = ""
	_ = e.stream.replaceMessage(bounded, history.HeartbeatKind, leader,
		seq) // if this fails, another process takes over after the lease
}

// tick evaluates once, unless another process leads.
//
// The order makes it safe. It reads the last record of each subject, then Redis, then publishes each change
// with the sequence of that record as the expected one. If another process has changed a state since, the
// server refuses the change, so no evaluation overwrites a state that it has not read.
func (e *evaluator) tick(ctx context.Context) {
	leader, leaderSeq, heardAt := e.stream.lastHeartbeat()
	silent := min(time.Since(heardAt), time.Since(e.startedAt))
	if leader.By != "" && leader.By != e.process && !leader.NoRedis && silent < e.timeouts.lease {
		if !e.leaderSince.IsZero() {
			e.log.Info().Str("by", leader.By).Msg("another process leads")
		}
		e.leaderSince = time.Time{}
		e.metrics.resetLeaderGauges()
		e.compareFiles(leader)
		return
	}
	base := e.readBaseline()
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, queryTimeout)
	current, err := e.querier.query(bounded, e.ruleSet.Rules, base.activeKeys)
	cancel()
	if ctx.Err() != nil {
		return
	}
	noRedis := err != nil
	if noRedis {
		e.metrics.evaluations.WithLabelValues("failed").Inc()
		e.problems.warn(e.log, err, "evaluation failed: Redis does not answer")
		if silent < e.timeouts.outage {
			return // Redis may return, or another process may reach it
		}
		at := e.estimateRedisTime()
		current = snapshot{at: at, results: unknownResults(e.ruleSet.Rules, base.activeKeys, at, reasonNoRedis)}
	} else {
		e.redisTime, e.redisTimeReadAt = current.at, began
	}
	if time.Since(began) > e.timeouts.lease+queryTimeout {
		return // the process stalled: what it read is old
	}
	own := heartbeat{By: e.process, At: toTime(current.at), Fingerprint: e.ruleSet.Fingerprint, NoRedis: noRedis,
		Rules: len(e.ruleSet.Rules)}
	if err := e.stream.replaceMessage(ctx, history.HeartbeatKind, own, leaderSeq); err != nil {
		if !errors.Is(err, errConflict) && ctx.Err() == nil {
			e.problems.warn(e.log, err, "evaluation failed: NATS does not store it")
			e.stream.setUnpublished(e.planChanges(base, current))
		}
		return
	}
	if e.leaderSince.IsZero() {
		e.leaderSince = began
		if leaderSeq == 0 || leader.By == e.process || leader.Fingerprint == e.ruleSet.Fingerprint {
			e.leaderSince = began.Add(-e.timeouts.orphanGrace) // the previous leader had the same file
		}
		e.log.Info().Int("rules", own.Rules).Str("file", own.Fingerprint).Msg("leading: evaluating rules")
	}
	e.metrics.evaluating.Set(1)
	if !noRedis {
		e.problems.recovered(e.log, "evaluation recovered")
		e.metrics.observeEvaluation(began)
	}
	e.publishChanges(ctx, began, e.planChanges(base, current))
	e.metrics.setStates(e.stream.copyStates(), current.results, e.stream.namespace)
	if !e.targetsEnded && time.Since(e.leaderSince) >= e.timeouts.orphanGrace {
		e.endRemovedTargets(ctx)
	}
}

// endRemovedTargets ends the deliveries to targets that the file lacks, or that are Alertmanagers now.
func (e *evaluator) endRemovedTargets(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	e.targetsEnded = true
	for _, name := range e.stream.listTargets() {
		current := e.stream.readLease(name)
		if t := e.ruleSet.findTarget(name); t != nil && t.kind.newNotifier != nil || current.Gone {
			continue
		}
		if err := e.stream.replaceMessage(bounded, "delivery."+name, progress{Gone: true}, current.seq); err != nil {
			e.targetsEnded = false // retried at the next tick
			continue
		}
		e.log.Info().Str("target", name).Msg("target is no longer in WATCH_FILE: its waiting changes are dropped")
	}
}

// publishChanges publishes changes unless the process has stalled since it read Redis.
func (e *evaluator) publishChanges(ctx context.Context, began time.Time, drafts []draft) {
	if len(drafts) == 0 || time.Since(began) > e.timeouts.lease+queryTimeout {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	stored, conflicts, err := e.stream.publishRecords(bounded, drafts)
	e.metrics.changes.Add(float64(stored))
	if err != nil && ctx.Err() == nil {
		e.problems.warn(e.log, err, "changes not stored: retrying")
	}
	if conflicts > 0 {
		e.log.Debug().Int("changes", conflicts).Msg("another process was first")
	}
}

// estimateRedisTime estimates Redis's clock if Redis does not answer: its last reading plus the time since.
func (e *evaluator) estimateRedisTime() int64 {
	if e.redisTime == 0 {
		return time.Now().UnixMilli()
	}
	return e.redisTime + time.Since(e.redisTimeReadAt).Milliseconds()
}

type baseline struct {
	states       map[string]*entry
	activeByRule map[string][]string // by rule: the keys whose state is not idle
}

func (e *evaluator) readBaseline() baseline {
	out := baseline{e.stream.copyStates(), make(map[string][]string)}
	for _, s := range out.states {
		if s.isLasting() && s.Key != "" {
			out.activeByRule[s.Rule] = append(out.activeByRule[s.Rule], s.Key)
		}
	}
	for _, keys := range out.activeByRule {
		slices.Sort(keys)
	}
	return out
}

func (n baseline) activeKeys(r *Rule) []string { return n.activeByRule[r.Name] }

func (e *evaluator) planChanges(base baseline, current snapshot) (out []draft) {
	evaluated := make(map[string]bool, len(current.results))
	many, open := 0, make(map[*Rule]int)
	for _, r := range e.ruleSet.Rules {
		if r.hasManyKeys() {
			many++
			open[r] = len(base.activeKeys(r))
		}
	}
	share := max(1, e.maxStates/max(1, many)) // so that one rule's keys leave room for those of others
	full := make(map[*Rule]bool)
	addChange := func(s Result) {
		subject := stateSubject(e.stream.namespace, s.Rule.Name, s.Key)
		evaluated[subject] = true
		known := base.states[subject]
		if known == nil {
			known = &entry{}
		}
		previous := known.Record
		next, changed := previous.advance(s)
		switch {
		case changed && s.Rule.hasManyKeys() && s.Key != "" && previous.State.IsIdle() && !next.State.IsIdle():
			if open[s.Rule] >= share {
				full[s.Rule] = true
				return
			}
			open[s.Rule]++
		case !changed && previous.isLive() && (known.seq == 0 || e.expiresSoon(known)):
			next, changed = e.stream.renew(known), true // the stream must have each live state
		}
		if changed {
			next.By = e.process
			out = append(out, draft{subject, known.seq, next})
		}
	}
	var ruleResults []Result
	for _, s := range current.results {
		if s.Rule.hasManyKeys() && s.Key == "" {
			ruleResults = append(ruleResults, s)
			continue
		}
		addChange(s)
	}
	for _, s := range ruleResults { // last, because they report whether a key had no room
		if full[s.Rule] {
			s.Verdict, s.Reason = Undecided, reasonStates
		}
		addChange(s)
	}
	if !e.leaderSince.IsZero() && time.Since(e.leaderSince) >= e.timeouts.orphanGrace {
		for subject, s := range base.states {
			if s.isLive() && !evaluated[subject] && e.isOrphan(s) {
				final := s.finish(current.at, "the rule, or this key of it, is not in WATCH_FILE any more")
				final.By = e.process
				out = append(out, draft{subject, s.seq, final})
			}
		}
	}
	return out
}

// isOrphan reports whether the file no longer has the rule or key of a state without a result. An idle state
// of a key that comes and goes stays until the stream expires it.
func (e *evaluator) isOrphan(s *entry) bool {
	for _, r := range e.ruleSet.Rules {
		if r.Name == s.Rule {
			return !r.hasManyKeys() || !s.State.IsIdle()
		}
	}
	return true
}

// expiresSoon reports whether the stream will soon expire a record.
func (e *evaluator) expiresSoon(s *entry) bool {
	maxAge, _ := e.stream.limits()
	return maxAge > 0 && e.stream.now().Sub(s.stored) > maxAge/2
}

// compareFiles warns if the leader has another file.
func (e *evaluator) compareFiles(leader heartbeat) {
	if leader.Fingerprint == e.ruleSet.Fingerprint {
		e.metrics.fileDiffers.Set(0)
		e.warnedFingerprint = ""
		return
	}
	e.metrics.fileDiffers.Set(1)
	if e.warnedFingerprint != leader.Fingerprint {
		e.warnedFingerprint = leader.Fingerprint
		e.log.Warn().Str("by", leader.By).Str("its", leader.Fingerprint).Str("own",
			e.ruleSet.Fingerprint).Msg("the leader has another WATCH_FILE than this process: the leader's rules count")
	}
}
