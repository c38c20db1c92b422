package limit

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/go-redis/v9"
)

// All keys are named like this; the number in braces is the hash tag:
//
//	<ns>:{<tag>}:limit:<policy>:<window>:<limit>:<key>    window in ms; limit is empty if the request gave the numbers
//
// The tag depends only on the caller's key, so one script can decide about all limits of one client.

// tags is the number of hash tags: enough to spread keys evenly over the nodes of a cluster.
const tags = 256

// store keeps hits in Redis. Every decision is one script.
type store struct {
	client    redis.UniversalClient
	namespace string
	scripts   *scriptSet
}

func (s *store) key(t *Take) string {
	out := append(make([]byte, 0, 128), s.namespace...)
	out = strconv.AppendUint(append(out, ":{"...), tagOf(t.Key), 10)
	out = append(append(out, "}:limit:"...), t.Limit.Policy...)
	out = strconv.AppendInt(append(out, ':'), t.Limit.Window.Milliseconds(), 10)
	out = append(append(append(append(out, ':'), t.Limit.Name...), ':'), t.Under...)
	return string(out)
}

func tagOf(key string) uint64 { return xxhash.Sum64String(key) % tags }

//go:embed lua
var sources embed.FS

// scriptSet holds one script per set of policies, because a script with one policy takes half the time of one
// with all, and that of Cells has a fast path first.
type scriptSet struct {
	decide [1 << 4]*redis.Script
	lease  *redis.Script // renews or ends one
}

// giveStep bounds the hits of Log and Stream that one script gives back or expires, because it blocks Redis.
const giveStep = 1000

var scripts = newScripts("", giveStep)

// newScripts puts begin before each script: tests set Redis's clock there.
func newScripts(begin string, step int) *scriptSet {
	var out scriptSet
	own := fmt.Sprintf("local policies, step = {}, %d\n", step)
	for set := range out.decide {
		text := begin
		if set == 1<<0 { // only Policies[0], which is Cells
			text += source("hot")
		}
		text += own
		for i, policy := range NamedPolicies {
			if set&(1<<i) != 0 {
				text += source(string(policy))
			}
		}
		out.decide[set] = redis.NewScript(text + source("decide"))
	}
	out.lease = redis.NewScript(begin + own + source(string(Concurrent)) + source("lease"))
	return &out
}

func source(name string) string {
	text, err := sources.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // the tree has it
	}
	return string(text)
}

// state is a script's result for one take: the hits in the window before counting, or after giving back.
type state struct {
	fits                   bool
	lower, estimate, upper int64
	wait                   time.Duration // until it would fit
	counted                int64         // hits that were counted; less than 0: that were given back
	at                     int64         // when they were counted, Unix milliseconds by the key's time; of a slot, its score
	ends                   int64         // of a held slot: Unix milliseconds by Redis's clock
}

func (s *state) shift(n int64) { s.lower, s.estimate, s.upper = s.lower+n, s.estimate+n, s.upper+n }

type mode int

const (
	look  mode = iota
	count      // what is allowed
	force      // count without asking, up to max
	undo       // give back what was counted at a time or before
)

// decide runs the script for takes whose keys share a node. If counts is true and all of them fit, it counts
// them. stakes are the reservations of the takes, or nil.
//
// Large give-backs take several steps. After an error, the states returned are certainly given back.
func (s *store) decide(ctx context.Context, takes []Take, keys []string, stakes []stake, counts bool) ([]state, error) {
	if !counts {
		states, _, err := s.run(ctx, look, takes, keys, stakes, 0)
		return states, err
	}
	states, rest, err := s.run(ctx, count, takes, keys, stakes, 0)
	for err == nil && rest != nil {
		rest, err = s.giveRest(ctx, takes, keys, states, rest)
	}
	return states, err
}

func (s *store) giveRest(ctx context.Context, takes []Take, keys []string, states []state, rest []int64) ([]int64, error) {
	var partTakes []Take
	var partKeys []string
	var places []int
	for i, n := range rest {
		if n > 0 {
			take := takes[i]
			take.N = -n
			partTakes, partKeys, places = append(partTakes, take), append(partKeys, keys[i]), append(places, i)
		}
	}
	part, partRest, err := s.run(ctx, count, partTakes, partKeys, nil, 0)
	if err != nil {
		return nil, err
	}
	var left []int64
	for i, place := range places {
		part[i].counted += states[place].counted
		states[place] = part[i]
		if partRest != nil && partRest[i] > 0 {
			if left == nil {
				left = make([]int64, len(takes))
			}
			left[place] = partRest[i]
		}
	}
	return left, nil
}

// force counts n hits of a key without a check, but not beyond most, and returns how many it counted.
func (s *store) force(ctx context.Context, take *Take, key string, n, most int64) (int64, error) {
	limit := *take.Limit
	limit.Max = most
	states, _, err := s.run(ctx, force, []Take{{Limit: &limit, N: n, Lease: take.Lease}}, []string{key}, nil, 0)
	if err != nil {
		return 0, err
	}
	return states[0].counted, nil
}

// takeBack gives back the newest n hits of a key that were counted at or before the time at.
func (s *store) takeBack(ctx context.Context, take *Take, key string, n, at int64) error {
	for n > 0 {
		_, rest, err := s.run(ctx, undo, []Take{{Limit: take.Limit, N: -n, Lease: take.Lease}}, []string{key}, nil, at)
		if err != nil || rest == nil {
			return err
		}
		n = rest[0]
	}
	return nil
}

// run runs a script. at is the time for the mode undo, otherwise 0. rest is what remains to be given back, or
// nil. After an error the script may have run, or may run later.
func (s *store) run(ctx context.Context, m mode, takes []Take, keys []string, stakes []stake, at int64) (states []state, rest []int64, err error) {
	script, args := s.call(takes, stakes, m, at)
	var reply []any
	err = s.onMaster(ctx, keys[0], func(node redis.Scripter) (err error) {
		reply, err = script.Run(ctx, node, keys, args...).Slice()
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return parseStates(reply, takes)
}

func (s *store) call(takes []Take, stakes []stake, m mode, at int64) (*redis.Script, []any) {
	set := 0
	args := make([]any, 1, 2+5*len(takes))
	args[0] = int(m)
	if len(takes) > 1 && slices.ContainsFunc(takes, func(t Take) bool { return t.Limit.shadow() }) {
		args[0] = withShadows(m, takes)
	}
	for i := range takes {
		l := takes[i].Limit
		for j, policy := range NamedPolicies {
			if l.Policy == policy {
				set |= 1 << j
			}
		}
		args = append(args, string(l.Policy), l.Window.Milliseconds(), l.Max-besideOf(stakes, i), takes[i].N, takes[i].Lease)
	}
	if m == undo {
		args = append(args, at)
	}
	return s.scripts.decide[set], args
}

// withShadows appends which takes are in shadow mode. A single take needs no mark: it blocks no other.
func withShadows(m mode, takes []Take) string {
	out := strconv.AppendInt(nil, int64(m), 10)
	for i := range takes {
		if takes[i].Limit.shadow() {
			out = append(out, 's')
		} else {
			out = append(out, '-')
		}
	}
	return string(out)
}

func parseStates(reply []any, takes []Take) (states []state, rest []int64, err error) {
	states = make([]state, len(takes))
	if len(reply) != len(takes) {
		return nil, nil, fmt.Errorf("the script answered about %d takes and not %d", len(reply), len(takes))
	}
	for i, item := range reply {
		fields, _ := item.([]any)
		if len(fields) != 5 && len(fields) != 7 && len(fields) != 8 {
			return nil, nil, fmt.Errorf("the script answered %v", item)
		}
		var v [8]int64
		for j, field := range fields {
			v[j], _ = field.(int64) // Redis makes integers of a script's numbers
		}
		states[i] = state{fits: v[0] == 1, lower: v[1], estimate: v[2], upper: v[3], ends: v[7] / 1000}
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

// lease renews or releases a lease, and reports whether it was held. left is the time until it ends after a
// renewal, and ends the moment, Unix milliseconds by Redis's clock.
func (s *store) lease(ctx context.Context, what string, take *Take, key string) (held bool, left time.Duration, ends int64, err error) {
	var v []int64
	err = s.onMaster(ctx, key, func(node redis.Scripter) (err error) {
		v, err = s.scripts.lease.Run(ctx, node, []string{key}, what, take.Limit.Window.Milliseconds(), take.Lease).Int64Slice()
		return err
	})
	if err == nil && len(v) != 3 {
		err = fmt.Errorf("the script answered %v", v)
	}
	if err != nil {
		return false, 0, 0, err
	}
	return v[0] == 1, time.Duration(v[1]) * time.Millisecond, v[2] / 1000, nil
}

func (s *store) forget(ctx context.Context, key string) error {
	return s.onMaster(ctx, key, func(node redis.Scripter) error { return node.(redis.Cmdable).Unlink(ctx, key).Err() })
}

// onMaster calls run with a client of the node that has the key. A cluster client would retry a lost command,
// and a take could count twice. If the key has moved, the node did nothing, and run is called once more.
func (s *store) onMaster(ctx context.Context, key string, run func(redis.Scripter) error) error {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return run(s.client)
	}
	const tries = 2
	for try := 1; ; try++ {
		node, err := cluster.MasterForKey(ctx, key)
		if err != nil {
			return err
		}
		err = run(node)
		if _, moved := redis.IsMovedError(err); !moved || try == tries {
			return err
		}
		cluster.ReloadState(ctx)
	}
}

func (s *store) together(takes []Take) bool {
	if _, ok := s.client.(*redis.ClusterClient); !ok {
		return true
	}
	for i := range takes {
		if tagOf(takes[i].Key) != tagOf(takes[0].Key) {
			return false
		}
	}
	return true
}

// refusedByRedis returns an error that would recur: the user may not run the script, or the key is foreign.
func refusedByRedis(err error) error {
	switch {
	case err == nil:
		return nil
	case redis.IsPermissionError(err), redis.IsAuthError(err), refusedInScript(err.Error()):
		return &ForbiddenError{err}
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return &ForeignError{err}
	}
	return nil
}

// isFull reports whether Redis refused a script for lack of memory. Then nothing was counted.
func isFull(err error) bool {
	return err != nil && strings.Contains(err.Error(), "OOM command not allowed")
}

// refusedInScript reports whether a script ran and a command in it was refused. That is an ERR with this text
// and not NOPERM: the first up to Redis 7.0, the second from 7.2 on.
func refusedInScript(message string) bool {
	return strings.Contains(message, "The user executing the script") || strings.Contains(message, "ACL failure in script")
}

// ForbiddenError means that the user of REDIS_URL lacks rights that a decision needs.
type ForbiddenError struct{ Err error }

func (e *ForbiddenError) Error() string {
	return "the Redis user of this service may not count takes: it needs the rights in docs/limits.md"
}
func (e *ForbiddenError) Unwrap() error { return e.Err }

// ForeignError means that another program has written to a key of a limit.
type ForeignError struct{ Err error }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("a key of the limit was not written by Tallyroll: %v", e.Err)
}
func (e *ForeignError) Unwrap() error { return e.Err }

// UnavailableError means that Redis is unavailable or full, and the limit's fail mode is closed.
type UnavailableError struct {
	Limit *Limit
	Err   error
}

func (e *UnavailableError) Error() string { return "Redis cannot decide now" }
func (e *UnavailableError) Unwrap() error { return e.Err }

var errDown = errors.New("no answer from Redis before; it is asked again soon")
