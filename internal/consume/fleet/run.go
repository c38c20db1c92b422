package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// tickEvery is the interval of checks for silent workers.
const tickEvery = 200 * time.Millisecond

// Run keeps this worker in the fleet until ctx ends, and then removes it.
func (f *Fleet) Run(ctx context.Context) {
	defer f.leave()
	defer f.stopWatch()
	heartbeat, tick := time.NewTicker(heartbeatEvery), time.NewTicker(tickEvery)
	defer heartbeat.Stop()
	defer tick.Stop()
	f.sendHeartbeat(ctx)
	for {
		due := false
		select {
		case <-ctx.Done():
			return
		case <-heartbeat.C:
			due = true
		case <-f.heartbeatDue:
			due = true
		case <-tick.C:
		case entry, ok := <-f.bucket.updates():
			if !ok {
				f.stopWatch()
			} else if entry != nil { // nil marks the end of the existing keys
				f.applyEntry(entry)
			}
		}
		if due {
			f.sendHeartbeat(ctx)
		}
		f.updatePlan(ctx, due)
		f.changed.Give()
	}
}

// sendHeartbeat writes this worker's key. It opens or creates the bucket if necessary.
func (f *Fleet) sendHeartbeat(runCtx context.Context) {
	ctx, cancel := context.WithTimeout(runCtx, kvTimeout)
	defer cancel()
	if id := f.id(); id != f.bucket.id {
		f.changeID(ctx, id)
	}
	err := f.bucket.open(ctx, runCtx)
	if err == nil {
		err = f.writeMember(ctx)
	}
	f.reached = err == nil
	switch {
	case f.reached:
		if f.failureLogged {
			f.log.Info().Msg("the fleet can be reached again")
		}
		f.joined, f.failureLogged = true, false
	case runCtx.Err() != nil:
		return // the end of ctx may be the cause
	default:
		f.handleFailure(err)
	}
	f.mu.Lock()
	f.alone = !f.joined
	f.mu.Unlock()
}

func (f *Fleet) handleFailure(err error) {
	if isGone(err) {
		f.bucket.kv = nil // a server that was restarted has forgotten the bucket
		f.stopWatch()
	}
	if !f.failureLogged {
		what := "the fleet cannot be reached: keeping the streams held"
		if !f.joined {
			what = "no fleet can be joined: reading every stream, which is exact but wastes work if there are other " +
				"workers"
			last := f.bucket.js.Conn().LastError() // what the server refused; a timeout follows
			if errors.Is(last, nats.ErrPermissionViolation) && strings.Contains(last.Error(), f.bucket.name) {
				what += "; give this user the right to create the stream KV_" + f.bucket.name + " and to use $KV." +
					f.bucket.name + ".>"
			}
		}
		f.log.Warn().Err(err).Msg(what)
	}
	f.failureLogged = true
}

// changeID restarts under another id: after Redis was emptied, a worker that lacked the id has set a new one.
func (f *Fleet) changeID(ctx context.Context, id string) {
	if f.reached {
		_ = f.bucket.removeMember(ctx, f.token) // or it expires
	}
	f.bucket.stopWatch()
	f.bucket.id = id
	f.mu.Lock()
	f.roster = newRoster(f.token, f.lastCommit)
	f.mu.Unlock()
}

// stopWatch ends the watch. By the next one, the bucket may have been recreated, with revisions from 1.
func (f *Fleet) stopWatch() {
	f.bucket.stopWatch()
	f.mu.Lock()
	f.roster.revision = 0
	f.mu.Unlock()
}

func (f *Fleet) writeMember(ctx context.Context) error {
	f.mu.Lock()
	self := f.self
	self.Holds = slices.AppendSeq([]string{}, maps.Keys(f.holds))
	f.mu.Unlock()
	slices.Sort(self.Holds)
	revision, err := f.bucket.writeMember(ctx, f.token, self)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.roster.recordWrite(revision)
	if f.self.Joined == 0 {
		f.self.Joined = revision
	}
	return nil
}

func (f *Fleet) applyEntry(entry jetstream.KeyValueEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	exists := entry.Operation() == jetstream.KeyValuePut
	if entry.Key() == planKey(f.bucket.id) {
		var p plan
		switch {
		case !exists:
			f.roster.revision = 0 // the plan stays in force
		case json.Unmarshal(entry.Value(), &p) == nil:
			f.roster.adopt(p, entry.Revision(), now)
		}
		return
	}
	token, ok := strings.CutPrefix(entry.Key(), memberPrefix(f.bucket.id))
	if !ok {
		return // written by a later version
	}
	if !exists {
		delete(f.roster.members, token)
		return
	}
	var m member
	if json.Unmarshal(entry.Value(), &m) == nil {
		f.roster.recordHeartbeat(token, entry.Revision(), m, now)
	}
}

// updatePlan removes silent workers. The leader also writes the plan, when it changes and at each heartbeat,
// so that it does not expire.
func (f *Fleet) updatePlan(ctx context.Context, due bool) {
	now := time.Now()
	f.mu.Lock()
	f.roster.removeDead(now)
	noEcho := !f.roster.hasEcho(now)
	var next plan
	revision := f.roster.revision
	if f.streams != nil && f.reached && f.roster.isLeader(now, func(Globs) bool { return true }) {
		next = f.roster.nextPlan(f.streams)
		if !due && f.roster.plan != nil && maps.Equal(next, f.roster.plan) {
			next = nil
		}
	}
	f.mu.Unlock()
	switch {
	case !noEcho:
		f.echoLossLogged = false
	case f.bucket.watcher != nil && now.Sub(f.bucket.watchedSince) > deadAfter:
		f.stopWatch() // the next heartbeat starts another
		if !f.echoLossLogged && f.reached {
			f.log.Warn().Msgf("this worker can write to the bucket %s, but its watch delivers nothing: it decides "+
				"nothing; may this user subscribe to its inbox, and does its account import the delivery subjects "+
				"below %s (NATS_INBOX_PREFIX)?",
				f.bucket.name, f.bucket.inboxPrefix())
			f.echoLossLogged = true
		}
	}
	if next != nil {
		f.publishPlan(ctx, next, revision)
	}
}

// publishPlan writes the plan unless another worker has. If that fails, the next heartbeat retries.
func (f *Fleet) publishPlan(ctx context.Context, next plan, previous uint64) {
	ctx, cancel := context.WithTimeout(ctx, kvTimeout)
	defer cancel()
	revision, err := f.bucket.writePlan(ctx, next, previous)
	if isMismatch(err) {
		// Another worker has written a plan, and this one continues from it, or the plan has expired.
		entry, err := f.bucket.kv.Get(ctx, planKey(f.bucket.id))
		f.mu.Lock()
		f.roster.revision = 0
		f.mu.Unlock()
		if err == nil {
			f.applyEntry(entry)
		}
		return
	}
	if err != nil {
		f.log.Debug().Err(err).Msg("the plan could not be written")
		return
	}
	f.mu.Lock()
	f.roster.adopt(next, revision, time.Now())
	f.mu.Unlock()
}

// leave removes this worker's key, even if a write of it is under way.
func (f *Fleet) leave() {
	if !f.joined || f.bucket.kv == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), f.leaveWithin)
	defer cancel()
	if err := f.bucket.removeMember(ctx, f.token); err != nil {
		f.log.Warn().Err(err).Msg("this worker's key could not be removed, and will expire")
	}
}
