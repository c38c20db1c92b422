// Package windowtest has what tests of the packages below internal/window share: each kind of Redis, a
// namespace in it with writers, questions and an eraser, hooks that interrupt commands, and drawn hits whose
// sums are known.
package windowtest

import (
	"context"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Suite runs every method of R that begins with Test on every kind of Redis, each with a rig of its own.
// cannot names those that the stand-in of cmd/dev cannot run, and why not.
func Suite[R ~struct{ *Rig }](t *testing.T, cannot map[string]string) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *Backend{
		"one server": Server, "cluster": Cluster, "stand-in": startStandIn,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			for i := range reflect.TypeFor[*R]().NumMethod() {
				method := reflect.TypeFor[*R]().Method(i)
				if !strings.HasPrefix(method.Name, "Test") {
					continue
				}
				t.Run(method.Name, func(t *testing.T) {
					if why, ok := cannot[method.Name]; ok && name == "stand-in" {
						t.Skip("the stand-in cannot: " + why)
					}
					method.Func.Interface().(func(*R, *testing.T))(&R{NewRig(t, b)}, t)
				})
			}
		})
	}
}

// Backend is a Redis that tests use one after the other, through the programs' own client.
type Backend struct {
	Client      redis.UniversalClient
	Clock       *stack.RedisClock // of the client
	Stop, Start func(key string)  // the server that holds the key
}

// NewBackend is a Redis that a test has started itself.
func NewBackend(client redis.UniversalClient) *Backend {
	return &Backend{Client: client, Clock: stack.WatchClock(client)}
}

// Server starts one redis-server.
func Server(t *testing.T) *Backend {
	server := stack.Redis(t)
	b := NewBackend(stack.ProgramClient(t, server.URL()))
	b.Stop, b.Start = func(string) { server.Stop() }, func(string) { server.Start() }
	return b
}

// Cluster starts a Redis Cluster.
func Cluster(t *testing.T) *Backend {
	cluster := stack.Cluster(t, 0)
	b := NewBackend(stack.ProgramClient(t, cluster.URL()))
	var stopped *stack.RedisServer
	b.Stop = func(key string) { stopped = cluster.MasterOf(key); stopped.Stop() }
	b.Start = func(string) { stopped.Start(); cluster.WaitOK() }
	return b
}

// startStandIn is what cmd/dev runs where there is no redis-server.
func startStandIn(t *testing.T) *Backend {
	server := miniredis.RunT(t)
	b := NewBackend(stack.ProgramClient(t, "redis://"+server.Addr()))
	b.Stop = func(string) { server.Close() }
	b.Start = func(string) { require.NoError(t, server.Restart()) }
	return b
}

// EachServer calls do with the client of every server that holds data.
func (b *Backend) EachServer(ctx context.Context, do func(context.Context, *redis.Client) error) error {
	if cluster, ok := b.Client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, do)
	}
	return do(ctx, b.Client.(*redis.Client))
}

// FlushAll empties every server.
func (b *Backend) FlushAll(ctx context.Context) error {
	return b.EachServer(ctx, func(ctx context.Context, server *redis.Client) error {
		return server.FlushAll(ctx).Err()
	})
}

// Hook sees each request, which is a command or a pipeline. It goes out when send is called.
type Hook func(ctx context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error

func (Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h(ctx, []redis.Cmder{cmd}, func(cmds []redis.Cmder) error { return next(ctx, cmds[0]) })
	}
}

func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h(ctx, cmds, func(cmds []redis.Cmder) error { return next(ctx, cmds) })
	}
}

// AddHook adds a hook to whatever sends commands: the clients of a cluster's masters, or the client.
func (b *Backend) AddHook(t *testing.T, h Hook) {
	t.Helper()
	add := func(_ context.Context, server *redis.Client) error { server.AddHook(h); return nil }
	require.NoError(t, b.EachServer(t.Context(), add))
}

// FailAll gives commands an error in place of what came back.
func FailAll(cmds []redis.Cmder, err error) error {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

// CountTrips returns how many requests were sent since the last call.
func (b *Backend) CountTrips(t *testing.T) func() int64 {
	if _, cluster := b.Client.(*redis.ClusterClient); cluster {
		t.Skip("nodes are asked side by side: the trips of one are counted")
	}
	var trips atomic.Int64
	b.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		if name := cmds[0].Name(); name != "hello" && name != "client" { // by the client itself, on a new connection
			trips.Add(1)
		}
		return send(cmds)
	})
	return func() int64 { return trips.Swap(0) }
}

// Trouble is what happens to a transaction.
type Trouble struct {
	Before, After func()
	Lost          bool // its reply
}

// AddTrouble returns where the trouble of the next transaction is put.
func (b *Backend) AddTrouble(t *testing.T) *atomic.Pointer[Trouble] {
	t.Helper()
	next := new(atomic.Pointer[Trouble])
	b.AddHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
		if cmds[len(cmds)-1].Name() != "exec" {
			return send(cmds)
		}
		now := next.Swap(nil)
		if now == nil {
			now = new(Trouble)
		}
		if now.Before != nil {
			now.Before()
		}
		err := send(cmds)
		if now.After != nil {
			now.After()
		}
		if now.Lost {
			return FailAll(cmds, io.ErrUnexpectedEOF)
		}
		return err
	})
	return next
}

// Interrupts does something once, before a command of the requests that follow. A transaction is one
// command, because Redis runs nothing else within it.
type Interrupts struct {
	Trips atomic.Int32 // requests about the namespace since Arm
	left  atomic.Int32 // commands before the one that is to wait; negative if none is
	do    func()
}

func (b *Backend) AddInterrupts(t *testing.T) *Interrupts {
	t.Helper()
	h := new(Interrupts)
	h.Disarm()
	b.AddHook(t, h.send)
	return h
}

// Arm lets do happen before the command with this number, from 0.
func (h *Interrupts) Arm(before int, do func()) {
	h.do = do
	h.Trips.Store(0)
	h.left.Store(int32(before))
}

// Disarm reports whether something was done since Arm, and lets nothing more happen.
func (h *Interrupts) Disarm() bool {
	h.Trips.Store(0)
	return h.left.Swap(-1) < 0
}

func (h *Interrupts) send(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
	ours := slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool {
		return cmd.Name() == "unwatch" || slices.ContainsFunc(cmd.Args(), func(arg any) bool {
			key, _ := arg.(string)
			return strings.HasPrefix(key, "test:{")
		})
	})
	if !ours {
		return send(cmds)
	}
	h.Trips.Add(1)
	size := len(cmds)
	if cmds[len(cmds)-1].Name() == "exec" {
		size = 1
	}
	if h.left.Load() < 0 {
		return send(cmds)
	}
	at := int(h.left.Add(int32(-size))) + size
	if at >= size {
		return send(cmds)
	}
	var first error
	if at > 0 {
		first = send(cmds[:at])
	}
	h.do()
	return errors.Join(first, send(cmds[at:]))
}
