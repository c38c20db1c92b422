package worker

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// failing makes commands of a client fail, each with the errors given for its
// name, one after the other, before it is let through.
type failing map[string][]error

func (f failing) DialHook(next redis.DialHook) redis.DialHook { return next }
func (f failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if errs := f[cmd.Name()]; len(errs) > 0 {
			f[cmd.Name()] = errs[1:]
			cmd.SetErr(errs[0])
			return errs[0]
		}
		return next(ctx, cmd)
	}
}

// replyError is an error that a server has replied with.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// A fail-over can begin in any instant of a worker's start.
func TestAStartingWorkerWaitsForRedis(t *testing.T) {
	t.Parallel()
	client := boot.Redis{URL: redisURL(t, stack.Redis(t).URL())}.Client()
	defer client.Close()
	lost := &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
	faults := failing{
		"config": {lost, lost},
		"set":    {lost, replyError("READONLY You can't write against a read only replica."), replyError("CLUSTERDOWN The cluster is down")},
		"get":    {replyError("LOADING Redis is loading the dataset in memory"), replyError("MASTERDOWN Link with MASTER is down")},
	}
	client.AddHook(faults)
	w := &namespace{parse(t), window.NewStore(client, "test"), zerolog.Nop()}
	layout, err := w.open(t.Context())
	require.NoError(t, err)
	for command, left := range faults {
		if len(left) > 0 {
			t.Errorf("%s was not asked again: %v are left", command, left)
		}
	}
	if have, err := w.store.Layout(t.Context()); err != nil || have.Shards != layout.Shards || !slices.Equal(have.Tiers, layout.Tiers) {
		t.Errorf("layout %+v, %v", have, err)
	}

	faults["set"] = slices.Repeat([]error{lost}, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, errOf(w.open(ctx)), context.Canceled, "a worker that is stopped while it waits")
}

// What waiting cannot mend ends the worker at once, with a line that says what is wrong.
func TestAStartingWorkerRefuses(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	admin := server.Client()
	do := func(args ...any) {
		t.Helper()
		require.NoError(t, admin.Do(t.Context(), args...).Err())
	}
	for _, test := range []struct {
		name    string
		prepare func()
		user    string
		want    string
	}{
		{"eviction", func() { do("config", "set", "maxmemory-policy", "allkeys-lru") }, "", "noeviction"},
		{"another layout", func() {
			do("config", "set", "maxmemory-policy", "noeviction")
			other := window.Layout{Tiers: parse(t).layout.Tiers, Shards: 3}
			require.NoError(t, window.NewStore(admin, "test").EnsureLayout(t.Context(), other))
		}, "", "SHARDS=3"},
		{"a layout of another version", func() { do("set", "test:layout", `{"version":99}`) }, "", "TALLYROLL_NAMESPACE"},
		{"a layout that is none", func() { do("set", "test:layout", "x") }, "", "layout record"},
		{"another kind of key", func() { do("del", "test:layout"); do("lpush", "test:layout", "x") }, "", "is not Tallyroll's"},
		{"no right", func() { do("acl", "setuser", "u", "on", ">p", "~*", "+@all", "-set") }, "u:p@", "'set'"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.prepare()
			client := boot.Redis{URL: redisURL(t, "redis://"+test.user+server.Addr())}.Client()
			defer client.Close()
			w := &namespace{parse(t, "SHARDS=16"), window.NewStore(client, "test"), zerolog.Nop()}
			_, err := w.open(t.Context())
			var usage boot.UsageError
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want a UsageError with %q", err, test.want)
			}
		})
	}
}

func redisURL(t *testing.T, text string) (u boot.RedisURL) {
	t.Helper()
	require.NoError(t, u.UnmarshalText([]byte(text)))
	return u
}
