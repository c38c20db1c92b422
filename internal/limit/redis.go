package limit

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/wait"
)

// redisStore keeps hits in Redis. Every decision is one script.
type redisStore struct {
	*process
	client  redis.UniversalClient
	scripts *scriptSet
	trips   sync.Map     // *trips by node
	ahead   atomic.Int64 // milliseconds that Redis's clock is ahead of this process's, if that is a period or more
}

//go:embed lua
var sources embed.FS

// scriptSet holds one script per set of policies, because a script with one policy takes half the time of one
// with all.
type scriptSet struct {
	decide []*redis.Script // by the bits of policies; the second half is with ids
}

// giveStep bounds the hits of Log and Stream that one script gives back or expires, because it blocks Redis.
const giveStep = 1000

// movedPause is the time before another try if a slot has moved, or moves.
const movedPause = 10 * time.Millisecond

var scripts = newScripts("", giveStep, source)

// prelude is before each policy. ahead is how much later than they are counted hits can be dated. hashBegan
// returns what tells a hash from one that was reset or restarted; with a stamp it has that at least.
const prelude = `
local step, policies, ids = %d, {}, nil
local function ahead(window, lease) return lease == 'share' and math.min(math.floor(window / %d), %d) or 0 end
local function hashBegan(key, stamp)
	local began = redis.call('HGET', key, 'b')
	if stamp and not began then
		redis.call('HSET', key, 'b', stamp)
		return stamp
	end
	return began
end
`

// newScripts puts begin before each script: tests set Redis's clock there, and plant bugs in the sources.
func newScripts(begin string, step int, source func(name string) string) *scriptSet {
	out := scriptSet{decide: make([]*redis.Script, 2<<len(table))}
	own := fmt.Sprintf(prelude, step, sharesPerWindow, MaxShare.Milliseconds())
	for set := range out.decide {
		text := own
		if set >= 1<<len(table) {
			text += source("ids")
		}
		for i := range table {
			if set == 1<<i && table[i].fast != "" {
				text = source(table[i].fast) + text
			}
			if set&(1<<i) != 0 {
				text += source(string(table[i].Policy))
			}
		}
		out.decide[set] = redis.NewScript(begin + text + source("decide"))
	}
	return &out
}

func source(name string) string {
	text, err := sources.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // the tree has it
	}
	return string(text)
}

func (s *redisStore) run(ctx context.Context, m mode, r request, at int64) (states []state, rest []int64, err error) {
	states, rest, err = s.runOnce(ctx, m, r, at)
	if now, ok := clockOf(err); ok { // it did nothing, because this process's clock is far from Redis's
		s.ahead.Store(now - s.now().UnixMilli())
		states, rest, err = s.runOnce(ctx, m, r, at)
	}
	return states, rest, err
}

// clockOf returns the time of Redis, if that is not between the turns that it was asked with.
func clockOf(err error) (milli int64, ok bool) {
	if !redis.HasErrorPrefix(err, "TURNS") {
		return 0, false
	}
	_, scanErr := fmt.Sscanf(err.Error(), "TURNS %d", &milli)
	return milli, scanErr == nil
}

// turns is what a script learns of a calendar: numbers and beginnings of the periods around now.
func (s *redisStore) turns(l *Limit) string {
	t := l.Period.Around(s.now().UnixMilli() + s.ahead.Load())
	out := make([]byte, 0, 96)
	for i := range t.Begins {
		out = strconv.AppendInt(append(out, ' '), t.Numbers[i], 10)
		out = strconv.AppendInt(append(out, ' '), t.Begins[i], 10)
	}
	return string(out)
}

func (s *redisStore) runOnce(ctx context.Context, m mode, r request, at int64) (states []state, rest []int64,
	err error) {
	script, keys, args := s.command(m, &r, at)
	sent, shared := &sentScript{ctx: ctx, script: script, keys: keys, args: args}, isShareable(m, &r)
	var reply []any
	err = redisconn.Repeat(ctx, isRepeatable(m, &r), func() error {
		return s.onMaster(ctx, r.keys[0], func(node redis.UniversalClient) (err error) {
			if !shared {
				reply, err = sent.runAlone(node)
				return err
			}
			shared = false // what is sent again goes alone
			reply, err = s.tripsTo(node).run(sent, r.keys[0], len(r.takes))
			return err
		})
	})
	if err != nil {
		return nil, nil, err
	}
	return parseStates(reply, r.takes)
}

// tripsTo returns the trips to a node. When a node is new, it forgets those that nothing uses: their nodes
// may be gone.
func (s *redisStore) tripsTo(node redis.UniversalClient) *trips {
	own, known := s.trips.Load(node)
	if !known {
		s.trips.Range(func(other, unused any) bool {
			if unused.(*trips).isIdle() {
				s.trips.Delete(other)
			}
			return true
		})
		own, _ = s.trips.LoadOrStore(node, &trips{node: node, background: &s.background, usedAt: time.Now()})
	}
	return own.(*trips)
}

// isRepeatable reports whether a script counts at most once if it runs twice: all takes have ids that may
// have been used, or it counts nothing, or renews a lease.
func isRepeatable(m mode, r *request) bool {
	return m == look || r.renew || (m == count || m == settle) && !slices.ContainsFunc(r.takes, func(t Take) bool {
		return t.ID == "" || t.Once
	})
}

// command returns the script for a request's policies, with its keys and arguments.
func (s *redisStore) command(m mode, r *request, at int64) (*redis.Script, []string, []any) {
	set, keys := 0, r.keys
	if r.ids {
		set, keys = 1<<len(table), slices.Clone(r.keys)
		for i, key := range r.keys {
			keys = append(keys, idKey(key, r.takes[i].ID))
		}
	}
	args := make([]any, 1, 2+5*len(r.takes))
	args[0] = int(m)
	if len(r.takes) > 1 && slices.ContainsFunc(r.takes, func(t Take) bool { return t.Limit.Mode == Shadow }) {
		args[0] = markShadows(m, r.takes)
	}
	for i := range r.takes {
		l := r.takes[i].Limit
		set |= 1 << l.Policy.index()
		lease := r.takes[i].Lease
		if l.Share.Hits > 0 {
			lease = "share"
		}
		if l.Period != nil {
			lease = s.turns(l)
		}
		args = append(args, string(l.Policy), l.Window.Milliseconds(), r.most(i), r.takes[i].N, lease)
		if r.ids {
			flags := 0
			if r.takes[i].Once {
				flags = 1
			}
			if r.takes[i].countsSettled() {
				flags += 2
			}
			args = append(args, r.takes[i].ID, r.takes[i].ttl().Milliseconds(), flags)
		}
	}
	switch m {
	case undo:
		args = append(args, at)
	case acquire:
		args = append(args, r.takes[0].Limit.Share.For.Milliseconds())
	}
	return s.scripts.decide[set], keys, args
}

// most returns how many hits Redis may have with those of a take.
func (r *request) most(i int) int64 {
	switch own := r.entries; {
	case own != nil && own[i].adopted:
		return MaxHits
	case r.renew:
		return 0 // it fits only if its lease is held
	case own != nil:
		return r.takes[i].Limit.Max - own[i].extra
	}
	return r.takes[i].Limit.Max
}

// markShadows appends which takes are in shadow mode. A single take needs no mark: it blocks no other.
func markShadows(m mode, takes []Take) string {
	out := strconv.AppendInt(nil, int64(m), 10)
	for i := range takes {
		mark := byte('-')
		if takes[i].Limit.Mode == Shadow {
			mark = 's'
		}
		out = append(out, mark)
	}
	return string(out)
}

func parseStates(reply []any, takes []Take) (states []state, rest []int64, err error) {
	states = make([]state, len(takes))
	if len(reply) != len(takes) {
		return nil, nil, fmt.Errorf("unexpected reply from Redis: %d results for %d takes", len(reply), len(takes))
	}
	for i, item := range reply {
		fields, _ := item.([]any)
		var v [13]int64
		if len(fields) < 5 || len(fields) > len(v) {
			return nil, nil, fmt.Errorf("unexpected reply from Redis: %v", item)
		}
		for j, field := range fields {
			v[j], _ = field.(int64) // Redis makes integers of a script's numbers
		}
		states[i] = state{
			fits: v[0] == 1, lower: v[1], estimate: v[2], upper: v[3], again: v[8] == 1,
			conflict: v[8] == 2, unknown: v[8] == 3, own: v[9], settled: v[10], beyond: v[11], change: v[12],
		}
		if takes[i].Limit.Policy.Traits().Turns {
			states[i].turn = time.Duration(v[7]) * time.Millisecond
		} else {
			states[i].ends = v[7] / 1000
		}
		switch last := v[4]; {
		case v[0] == 0:
			states[i].wait = time.Duration(last) * time.Millisecond
		case last > 0:
			states[i].counted, states[i].at = takes[i].N, last
		case takes[i].N < 0:
			states[i].counted = -v[5]
		default:
			states[i].counted = v[5]
		}
		if v[6] > 0 {
			if rest == nil {
				rest = make([]int64, len(takes))
			}
			rest[i] = v[6]
		}
	}
	return states, rest, nil
}

func (s *redisStore) forget(ctx context.Context, key string) error {
	return s.onMaster(ctx, key, func(node redis.UniversalClient) error { return node.Unlink(ctx, key).Err() })
}

// onMaster calls run with a client of the node that has the key. A cluster client would retry a lost command,
// and a take could count twice. If the key has moved, the node did nothing. While its slot moves, no node
// does anything, because a script has keys on both or none. Then run is called again, until ctx ends.
func (s *redisStore) onMaster(ctx context.Context, key string,
	run func(redis.UniversalClient) error) error {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return run(s.client)
	}
	for {
		node, err := cluster.MasterForKey(ctx, key)
		if err != nil {
			return err
		}
		err = run(node)
		_, moved := redis.IsMovedError(err)
		_, moves := redis.IsAskError(err)
		if !moved && !moves && !redis.IsTryAgainError(err) {
			return err
		}
		cluster.ReloadState(ctx) // which returns before it is done
		if gone := wait.Sleep(ctx, movedPause); gone != nil {
			return fmt.Errorf("%w: %w", gone, err)
		}
	}
}

// refusedByRedis returns an error that would recur: the user may not run the script, or the key is foreign.
func refusedByRedis(err error) error {
	switch {
	case err == nil:
		return nil
	case redis.IsPermissionError(err), redis.IsAuthError(err), isRefusedInScript(err.Error()):
		return &ForbiddenError{err}
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return &ForeignError{err}
	}
	if bad, ok := errors.AsType[*IDError](err); ok {
		return bad
	}
	return nil
}

// isRefusedInScript reports whether a script ran and a command in it was refused. That is an ERR with this
// text and not NOPERM: the first up to Redis 7.0, the second from 7.2 on.
func isRefusedInScript(message string) bool {
	return strings.Contains(message, "The user executing the script") ||
		strings.Contains(message, "ACL failure in script")
}

// ForbiddenError means that the user of REDIS_URL lacks rights that a decision needs.
type ForbiddenError struct{ Err error }

func (e *ForbiddenError) Error() string {
	return "the Redis user of this service may not count takes: it needs the rights in docs/limits-outages.md"
}
func (e *ForbiddenError) Unwrap() error { return e.Err }

// ForeignError means that another program has written to a key of a limit.
type ForeignError struct{ Err error }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("a key of the limit was not written by Tallyroll: %v", e.Err)
}
func (e *ForeignError) Unwrap() error { return e.Err }
