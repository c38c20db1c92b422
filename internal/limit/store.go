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

// The names of all keys. The number in braces is the hash tag.
//
//	<ns>:{<tag>}:limit:<policy>:<window>:<limit>:<key>    window in ms; limit is empty if the request gave the numbers
//
// The tag depends only on the key that the caller gives. So all limits of one client share a slot,
// and with it a script.

// tags is how many hash tags there are: enough to spread the keys evenly over the nodes of a cluster.
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

// scriptSet is the scripts that know these policies, by the set of policies: a script of one policy
// takes half the time of one that knows all, and that of Cells has the common case first.
type scriptSet struct {
	decide [1 << 4]*redis.Script
	lease  *redis.Script // renews or ends one
}

// giveStep is how many hits of the policies Log and Stream one script gives back, or removes after they have left the
// window: Redis does nothing else meanwhile.
const giveStep = 1000

var scripts = newScripts("", giveStep)

// newScripts makes scripts that begin with a text: that of the tests gives Redis a clock that they can set.
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

// state is what is known about a take: the hits in the window before new ones were counted, or after others
// were given back.
type state struct {
	fits                   bool
	lower, estimate, upper int64
	wait                   time.Duration // until it would fit
	counted                int64         // hits that were counted; less than 0: that were given back
	at                     int64         // when they were counted, Unix milliseconds by the key's time; of a place, its score
	ends                   int64         // of a place that is held: Unix milliseconds by Redis's clock
}

// shift adds hits that Redis does not know of.
func (s *state) shift(n int64) { s.lower, s.estimate, s.upper = s.lower+n, s.estimate+n, s.upper+n }

// mode is what a script is to do, as its first argument says it.
type mode int

const (
	look  mode = iota
	count      // what is allowed
	force      // count without asking, up to max
	undo       // give back what was counted at a time or before
)

// decide runs the script for takes whose keys share a node. It counts them if all of them fit and counts is true.
// stakes are those of the takes, or nil.
//
// Much is given back in several steps. If one of them fails, there are states beside the error, which say what
// is known to be given back.
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

// giveRest gives back what remains of some takes.
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

// force counts n hits of a take's key without asking, but not beyond most, and returns how many it has counted.
func (s *store) force(ctx context.Context, take *Take, key string, n, most int64) (int64, error) {
	limit := *take.Limit
	limit.Max = most
	states, _, err := s.run(ctx, force, []Take{{Limit: &limit, N: n, Lease: take.Lease}}, []string{key}, nil, 0)
	if err != nil {
		return 0, err
	}
	return states[0].counted, nil
}

// takeBack gives back n hits of a take's key: the newest of those that were counted at a time or before.
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

// run runs a script about takes. at is the time with the mode undo, otherwise 0. It returns what is still to be given back,
// or nil if there is nothing. After an error the script may have run, or may run yet.
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

// call returns the script for takes and its arguments.
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

// withShadows is a mode followed by which of the takes are in shadow mode. One alone stands in nobody's way.
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

// parseStates reads what a script says about takes.
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

// lease renews or releases the lease of a take, and reports whether it was held. If it is renewed, the time that it has
// now is left, and ends is when it ends, Unix milliseconds by Redis's clock.
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

// forget removes what is kept of a key.
func (s *store) forget(ctx context.Context, key string) error {
	return s.onMaster(ctx, key, func(node redis.Scripter) error { return node.(redis.Cmdable).Unlink(ctx, key).Err() })
}

// onMaster calls run with the node that has the key. A cluster's client repeats what failed on its way,
// and then a take could count twice, so run gets the client of the node. If the key has moved,
// the node did nothing, and run is called once more.
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

// together reports whether one script can decide about all takes.
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

// refusedByRedis reports whether Redis was asked and will say the same again: the user has no right to the
// script, or a key is no key of ours.
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

// isFull reports whether Redis has refused a script because it has no memory left. Nothing has been counted then.
func isFull(err error) bool {
	return err != nil && strings.Contains(err.Error(), "OOM command not allowed")
}

// refusedInScript reports whether a script ran and a command in it was refused. That is no NOPERM, but an ERR with
// this text: the first up to Redis 7.0, the second from 7.2 on.
func refusedInScript(message string) bool {
	return strings.Contains(message, "The user executing the script") || strings.Contains(message, "ACL failure in script")
}

// ForbiddenError means that the user of REDIS_URL may not do what a decision needs.
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

// UnavailableError means that Redis could not be asked about a limit that is closed then, or is full.
type UnavailableError struct {
	Limit *Limit
	Err   error
}

func (e *UnavailableError) Error() string { return "Redis cannot decide now" }
func (e *UnavailableError) Unwrap() error { return e.Err }

var errDown = errors.New("no answer from Redis before; it is asked again soon")
