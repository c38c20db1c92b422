package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/rules"
	"tallyroll/internal/window"
	"tallyroll/internal/window/commit"
)

// planner decides where each shard of a session continues, before the stream is read.
type planner struct {
	*setup
	*resumePlan
}

// makePlan compares the cursors with the stream. It writes only the entries by which readers find the
// cursors.
func makePlan(ctx context.Context, setup *setup) (*resumePlan, error) {
	// A namespace recreated since the last session may have other spans. Later, register finds that.
	layout, err := setup.Store.OpenLayout(ctx, setup.Layout)
	if err != nil {
		return nil, err
	}
	setup.Layout = layout
	p := planner{setup, new(resumePlan)}
	if err := p.openWriters(ctx); err != nil {
		return nil, err
	}
	// Ask after the cursors are read: the state of an earlier incarnation would set the cursor back.
	if p.state, err = source.Confirmed(ctx, p.source); err != nil {
		return nil, err
	}
	err = Refused(p.state)
	if err == nil {
		if err = p.Copies.refused(p.state); err != nil {
			err = errors.Join(err, p.unlist(ctx))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", p.stream, err)
	}
	if _, err := p.register(ctx, p.resumePlan); err != nil {
		return nil, err
	}
	servers, err := p.Store.Client.Servers(ctx)
	if err != nil {
		return nil, err
	}
	p.outage.end()
	p.concurrency = commitConcurrency * servers
	if err := p.choosePositions(ctx); err != nil {
		return nil, err
	}
	return p.resumePlan, p.chooseNamings(ctx)
}

func (p planner) openWriters(ctx context.Context) error {
	p.writers = make([]*shardWriter, p.Layout.Shards)
	return eachShard(ctx, len(p.writers), readConcurrency, func(opening context.Context, shard int) error {
		w, err := commit.OpenWriter(opening, p.Store, p.Layout, p.stream, shard)
		if err == nil {
			w.OnRetry = func(err error) { p.redisLost(ctx, shard, err) }
			w.OnLoss = p.reportRedisFault
			p.writers[shard] = &shardWriter{Writer: w}
		}
		return err
	})
}

func (p planner) choosePositions(ctx context.Context) error {
	history := newHistory(p.source, p.state)
	cursors := make([]window.Cursor, len(p.writers)) // Created is 0 without one
	for shard, w := range p.writers {
		cursors[shard], _ = w.Cursor()
	}
	if !slices.ContainsFunc(cursors, isWritten) {
		var err error
		if cursors, err = history.inherit(ctx, p.Store, p.Layout, p.stream); err != nil {
			return fmt.Errorf("stream %s: %w", p.stream, err)
		}
	}
	for _, c := range cursors {
		if isWritten(c) {
			history.cursors = append(history.cursors, c)
		}
	}
	var discarded uint64
	reported := false
	for shard, w := range p.writers {
		c := cursors[shard]
		r, err := history.resume(ctx, c, isWritten(c))
		if err != nil {
			return fmt.Errorf("stream %s: %w", p.stream, err)
		}
		w.position = r.cursor
		w.position.Settings = p.state.Settings()
		discarded = max(discarded, r.discarded) // the furthest shard may have counted its part of some of them
		if r.reason != "" && !reported {
			reported = true
			p.reportLoss(r.reason).Uint64("cursor", c.Seq).Uint64("first", p.state.First).Uint64("last", p.state.Last).
				Uint64("from", r.cursor.Seq+1).Uint64("discarded", r.discarded).Msg(reasons[r.reason])
		}
	}
	if history.moved {
		// A cursor that goes back takes the time of a message that was read from the stream now. If the
		// stream was recreated since its state was read, that message is one of the new stream.
		if _, err := p.confirmSame(ctx, p.resumePlan); err != nil {
			return err
		}
	}
	p.Metrics.discarded.WithLabelValues(p.stream).Add(float64(discarded))
	return nil
}

// chooseNamings decides by which versions messages from these positions on are read, and reads their rules.
func (p planner) chooseNamings(ctx context.Context) error {
	p.rules = p.Rules.Current()
	if !p.Rules.mayRead(p.rules, p.stream) {
		return fmt.Errorf("stream %s: the rules in force no longer name it, and INGEST_STREAMS does not match it",
			p.stream)
	}
	listed, err := listedNamings(p.positions())
	if err != nil {
		return fmt.Errorf("stream %s: %w", p.stream, err)
	}
	current := naming{Subjects: p.state.Subjects, Rules: fingerprintOf(p.rules)}
	if last := len(listed) - 1; last >= 0 {
		current.Origins = listed[last].Origins
	}
	current.Origins = p.Copies.next(p.stream, current.Origins)
	names, unused, err := namingsAfter(p.positions(), current)
	if err != nil {
		return fmt.Errorf("stream %s: %w", p.stream, err)
	}
	p.namings, p.namingText = names, names.String()
	if last := len(names) - 1; unused && last > 0 {
		p.logNewVersion(names[last], names[last-1])
	}
	if err := p.readRules(ctx); err != nil {
		return err
	}
	for _, w := range p.writers {
		w.position.Naming = p.namingText
	}
	return nil
}

func (p planner) logNewVersion(next, previous naming) {
	line := p.Log.Info().Uint64("from", next.From)
	if !slices.Equal(next.Origins, previous.Origins) {
		line.Strs("origins", next.Origins).Msg("messages of these streams, which count there, are skipped from here on")
		return
	}
	if next.Rules == previous.Rules {
		line.Strs("subjects", next.Subjects).
			Msg("the stream's subjects were edited: counters are named by them from here on")
		return
	}
	line.Str("rules", next.Rules).Str("before", previous.Rules).
		Msg("the rules were changed: messages are read by them from here on")
}

// readRules reads the rules of all versions by which messages after the smallest position are read.
func (p planner) readRules(ctx context.Context) error {
	smallest := p.smallestPosition().Seq
	if last := p.namings.lastUnlisted(smallest); last > 0 {
		return p.rulesLost(smallest+1, last, fmt.Sprintf("cursors list the last %d versions", maxNamings), "")
	}
	needed := p.namings.needed(smallest)
	p.ruleSets = make(map[string]*rules.Set)
	if p.rules != nil {
		p.ruleSets[p.rules.Fingerprint()] = p.rules
	}
	for i, n := range needed {
		if n.Rules == "" || p.ruleSets[n.Rules] != nil {
			continue
		}
		set, found, err := p.Rules.lookup(ctx, p.Store, n.Rules)
		if err != nil {
			return err
		}
		if !found { // and a later version follows, because the present rules are in memory
			return p.rulesLost(max(smallest+1, n.From), needed[i+1].From-1, "Redis does not hold rules "+n.Rules,
				fmt.Sprintf("put the file back, as it was then, with redis-cli -x HSET %s %s < FILE; or ",
					p.Store.Rules.Key(), n.Rules))
		}
		p.ruleSets[n.Rules] = set
	}
	return nil
}

func (p planner) rulesLost(first, last uint64, cause, repair string) error {
	return fmt.Errorf("stream %s, messages %d to %d: %w: %s: %spurge the stream up to there "+
		"(nats stream purge %s --seq=%d), which marks their hits as missing",
		p.stream, first, last, errRulesLost, cause, repair, p.stream, last+1)
}

// acquire writes all cursors, also unchanged ones, so that workers and readers see at once where counting
// continues. All are read before the first is written. So of two sessions that both succeed, one has read
// every cursor after the other had written it. If each wrote only what it changes, sessions with different
// versions could each acquire some cursors.
func (p planner) acquire(ctx context.Context) error {
	if err := p.keepRules(ctx, p.resumePlan); err != nil { // before a cursor names them
		return err
	}
	if err := eachShard(ctx, len(p.writers), readConcurrency, func(ctx context.Context, shard int) error {
		w := p.writers[shard]
		err := w.Acquire(ctx, w.position)
		if err == nil {
			w.updatePosition()
		}
		return err
	}); err != nil {
		return err
	}
	// Once more: if Redis lost the entries before the cursors were read, no cursor shows that.
	var err error
	p.registeredAt, err = p.register(ctx, p.resumePlan)
	return err
}

// verify checks, before anything is committed, that the stream being read is still the one of the plan. The
// watcher sees only later changes. After one before that, cursors would point to another stream's messages.
func (p planner) verify(ctx context.Context, buffer *buffer) error {
	state, err := p.confirmSame(ctx, p.resumePlan)
	if err != nil {
		return err
	}
	history := newHistory(p.source, state)
	for _, w := range p.writers {
		applied := messageID{w.position.Seq, w.position.Stored}
		for _, message := range [...]messageID{applied, {w.position.Ahead.Seq, w.position.Ahead.Stored}} {
			if _, back, err := history.locate(ctx, message, w.position.Latest); err != nil {
				return err
			} else if back {
				return errRolledBack
			}
		}
		// A discard may have hidden a roll-back, or, in a stream with gaps, itself.
		limited := !state.ChangesSince(w.position.Settings).Any
		before, proven, err := history.findProof(ctx, applied, limited)
		if err != nil {
			return err
		}
		until, why := before/1e6+1, unproven
		if proven {
			until = 0
		}
		_, lost := history.lostAfter(max(applied.seq, state.BeforeFirst()), max(applied.stored/1e6, w.position.AsOf),
			limited)
		if state.Gaps != "" && lost > until {
			until, why = lost, discardedUnread
		}
		if until > w.position.IncompleteBefore && buffer.markIncomplete(until) {
			p.reportLoss(why).Uint64("cursor", w.position.Seq).Uint64("first", state.First).Uint64("last", state.Last).
				Msg(reasons[why])
		}
	}
	return nil
}

// ErrRetention means that a stream deletes messages that were delivered to a worker but are not committed.
var ErrRetention = errors.New("its retention is not limits: the server deletes messages when they are delivered, " +
	"before they are counted: " +
	"set it to limits, or let INGEST_STREAMS not match it")

// Refused returns why a stream in this state cannot be counted, or nil.
func Refused(state source.State) error {
	if state.Retention != jetstream.LimitsPolicy {
		return ErrRetention
	}
	return nil
}
