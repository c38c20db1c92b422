package limit

import (
	"context"
	"embed"
	"errors"
	"fmt"
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
type scriptSet [1 << 3]*redis.Script

var scripts = newScripts("")

// newScripts makes scripts that begin with a text: that of the tests gives Redis a clock that they can set.
func newScripts(begin string) *scriptSet {
	var out scriptSet
	for set := range out {
		text := begin
		if set == 1<<0 { // only Policies[0], which is Cells
			text += source("hot")
		}
		text += "local policies = {}\n"
		for i, policy := range Policies {
			if set&(1<<i) != 0 {
				text += source(string(policy))
			}
		}
		out[set] = redis.NewScript(text + source("decide"))
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

// state is what is known about a take: the hits in the window before new ones were counted, or after others
// were given back.
type state struct {
	fits                   bool
	lower, estimate, upper int64
	wait                   time.Duration // until it would fit
}

// decide runs the script for takes whose keys share a node. It counts them if all of them fit and count is true.
func (s *store) decide(ctx context.Context, takes []Take, keys []string, count bool) ([]state, error) {
	script, args := s.call(takes, count)
	var reply []any
	err := s.onMaster(ctx, keys[0], func(node redis.Scripter) (err error) {
		reply, err = script.Run(ctx, node, keys, args...).Slice()
		return err
	})
	if err != nil {
		return nil, err
	}
	return parseStates(reply, len(takes))
}

// call returns the script for takes and its arguments.
func (s *store) call(takes []Take, count bool) (*redis.Script, []any) {
	set := 0
	args := make([]any, 1, 1+4*len(takes))
	args[0] = 0
	if count {
		args[0] = 1
	}
	for i := range takes {
		l := takes[i].Limit
		for j, policy := range Policies {
			if l.Policy == policy {
				set |= 1 << j
			}
		}
		args = append(args, string(l.Policy), l.Window.Milliseconds(), l.Max, takes[i].N)
	}
	return s.scripts[set], args
}

func parseStates(reply []any, n int) ([]state, error) {
	out := make([]state, n)
	if len(reply) != n {
		return nil, fmt.Errorf("the script answered about %d takes and not %d", len(reply), n)
	}
	for i, item := range reply {
		fields, _ := item.([]any)
		if len(fields) != 5 {
			return nil, fmt.Errorf("the script answered %v", item)
		}
		var v [5]int64
		for j, field := range fields {
			v[j], _ = field.(int64) // Redis makes integers of a script's numbers
		}
		out[i] = state{v[0] == 1, v[1], v[2], v[3], time.Duration(v[4]) * time.Millisecond}
	}
	return out, nil
}

// forget removes what is kept of a key.
func (s *store) forget(ctx context.Context, key string) error {
	return s.onMaster(ctx, key, func(node redis.Scripter) error { return node.(redis.Cmdable).Del(ctx, key).Err() })
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

// UnavailableError means that Redis could not be asked about a limit that is closed then.
type UnavailableError struct {
	Limit *Limit
	Err   error
}

func (e *UnavailableError) Error() string { return "Redis cannot decide now" }
func (e *UnavailableError) Unwrap() error { return e.Err }

var errDown = errors.New("no answer from Redis before; it is asked again soon")
