package limit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// realServer is a limiter whose Redis has its own clock.
func realServer(t *testing.T) (*Limiter, *stack.RedisServer) {
	t.Helper()
	server := stack.Redis(t)
	return New(stack.ProgramClient(t, server.URL()), "real", 5*time.Second), server
}

func mustTake(t *testing.T, l *Limiter, takes ...Take) Answer {
	t.Helper()
	l.refusals.all = nil
	a, err := l.Take(t.Context(), takes)
	require.NoError(t, err)
	return a
}

// Whatever has been done to a key, it has an expiry, and not one much later than its last hit leaves.
func TestKeysExpire(t *testing.T) {
	t.Parallel()
	limiter, server := realServer(t)
	for _, policy := range Policies() {
		for _, length := range []time.Duration{time.Second, 10 * time.Second, time.Hour, MaxWindow} {
			l := adhoc(t, length, 10, policy)
			take := takeOf(l, "alice", 0)
			key := limiter.key(&take)
			for _, n := range []int64{1, 3, -1, 6, 1, 5, -4, 2, 0, -1} {
				take.N = n
				mustTake(t, limiter, take)
				ttl := server.Client().PTTL(t.Context(), key).Val()
				most := length + 5*(length+59)/60 + time.Second
				if policy.Traits().Turns { // for a clock that goes back
					most = length + min(length, 26*time.Hour)
				}
				if length > time.Second && (ttl <= 0 || ttl > most) { // a key of a second may just have expired
					t.Errorf("%s, %s, after n %d: it expires in %s, want up to %s", policy, length, n, ttl, most)
				}
				if length == time.Second && ttl == -1 {
					t.Errorf("%s, %s, after n %d: it never expires", policy, length, n)
				}
			}
		}
	}
	slot := slotOf(concurrentLimit(2, FailClosed), "alice", "a")
	slot.Limit.Window = time.Second
	mustTake(t, limiter, slot)
	stack.Eventually(t, "the keys of a second to go", func() (bool, string) {
		keys := append(stack.Scan(t, server.Client(), "*:1000:*"),
			stack.Scan(t, server.Client(), limiter.key(&slot))...)
		return len(keys) == 0, fmt.Sprint(keys)
	})
}

// What is refused, and what only looks, leaves Redis as it is.
func TestRefusedAddsNothing(t *testing.T) {
	t.Parallel()
	limiter, server := realServer(t)
	client := server.Client()
	for _, policy := range Policies() {
		l := adhoc(t, time.Hour, 10, policy)
		take := takeOf(l, "alice", 10)
		key := limiter.key(&take)
		mustTake(t, limiter, take)
		before := client.Dump(t.Context(), key).Val()
		memory := client.MemoryUsage(t.Context(), key).Val()
		keys := client.DBSize(t.Context()).Val()
		if before == "" || memory == 0 || keys == 0 {
			t.Fatalf("%s: there is no key %s", policy, key)
		}
		for n := range int64(11) {
			take.N = n
			mustTake(t, limiter, take)
			for _, k := range []string{"alice", "bob"} {
				_, err := limiter.Look(t.Context(), []Take{takeOf(l, k, n)})
				require.NoError(t, err)
			}
		}
		mustTake(t, limiter, takeOf(l, "alice", 1), takeOf(l, "bob", 1))
		require.EqualValues(t, before, client.Dump(t.Context(), key).Val(), policy)
		require.EqualValues(t, memory, client.MemoryUsage(t.Context(), key).Val(), policy)
		require.EqualValues(t, keys, client.DBSize(t.Context()).Val(), policy)
	}
}

// A decision is one command, also of several limits with all policies.
func TestDecisionIsOneCommand(t *testing.T) {
	t.Parallel()
	limiter, server := realServer(t)
	sent := watchCommands(limiter.store.client)
	var takes []Take
	for _, policy := range Policies() {
		takes = append(takes, takeOf(adhoc(t, time.Minute, 10, policy), "alice", 1))
	}
	mustTake(t, limiter, takes...) // loads the script
	sent.scripts()
	mustTake(t, limiter, takes...)
	if got := sent.scripts(); !slices.Equal(got, []string{"evalsha"}) {
		t.Errorf("a decision sends %v", got)
	}
	// Redis has forgotten its scripts, as after a restart.
	require.NoError(t, server.Client().ScriptFlush(t.Context()).Err())
	a := mustTake(t, limiter, takes...)
	if got := sent.scripts(); !slices.Equal(got, []string{"evalsha", "eval"}) {
		t.Errorf("without scripts in Redis, a decision sends %v", got)
	}
	for _, d := range a.Decisions {
		if d.Remaining != 7 || d.Source != SourceRedis {
			t.Errorf("after three takes: %+v", d)
		}
	}
}

// commands are those that were sent.
type commands struct {
	mu    sync.Mutex
	names []string
}

// watchCommands notes what a client sends, on a cluster to any node.
func watchCommands(client redis.UniversalClient) *commands {
	c := new(commands)
	note := hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		c.mu.Lock()
		c.names = append(c.names, cmd.Name())
		c.mu.Unlock()
		return next(ctx, cmd)
	})
	client.AddHook(note)
	if cluster, ok := client.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(note) })
		_ = cluster.ForEachMaster(context.Background(), func(_ context.Context, node *redis.Client) error {
			node.AddHook(note)
			return nil
		})
	}
	return c
}

// scripts returns the commands that ran scripts since the last call.
func (c *commands) scripts() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.DeleteFunc(c.names, func(name string) bool { return !strings.HasPrefix(name, "eval") })
	c.names = nil
	return out
}

// Users without the rights are told apart from a Redis that is away: nothing gets better by waiting, and no
// fail mode decides, however often they ask.
func TestUsersWithoutRightsAreForbidden(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	forbidden := func(what string, err error) {
		t.Helper()
		if _, is := errors.AsType[*ForbiddenError](err); !is {
			t.Errorf("%s: %v", what, err)
		}
	}
	for user, rights := range map[string]string{
		"reader":           "~* +@read +@connection",
		"scripts":          "~* +@read +@connection +@scripting +time", // may run a script that may not write
		"no-scripts":       "~* +@all -@scripting",
		"no-keys-to-write": "%R~* +@all",
		"no-write":         "~* +@all -hset -zadd -xadd",
		"no-read":          "~* +@all -hmget -zrange -xrevrange",
		"timeless":         "~* +@all -time",
		"for-ever":         "~* +@all -pexpire",
		"elsewhere":        "+@all ~other:*",
	} {
		args := []any{"acl", "setuser", user, "on", ">secret", "resetchannels"}
		for word := range strings.FieldsSeq(rights) {
			args = append(args, word)
		}
		require.NoError(t, server.Client().Do(t.Context(), args...).Err())
		limiter := New(stack.ProgramClient(t, "redis://"+user+":secret@"+server.Addr()+"/0"), "real", 5*time.Second)
		for _, policy := range Policies() {
			for i := range failuresInARow + 2 {
				_, err := limiter.Take(t.Context(), []Take{takeOf(adhoc(t, time.Minute, 10, policy), fmt.Sprint(user, i), 1)})
				forbidden(fmt.Sprint(user, ", ", policy), err)
			}
		}
		if user == "reader" || user == "scripts" || user == "elsewhere" {
			forbidden(user+", reset", limiter.Reset(t.Context(), takeOf(adhoc(t, time.Minute, 10, Log), "alice", 1)))
		}
	}
	wrong := New(stack.ProgramClient(t, "redis://reader:wrong@"+server.Addr()+"/0"), "real", 5*time.Second)
	_, err := wrong.Take(t.Context(), []Take{takeOf(adhoc(t, time.Minute, 10, Log), "alice", 1)})
	forbidden("with a wrong password", err)
}

// The words of Redis differ from 7.2 on; the tests' is 7.0.
func TestRefusalInAScriptIsKnownByItsWords(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		"ERR The user executing the script can't run this command or subcommand script: 5f, on @user_script:9.":        true,
		"ERR ACL failure in script: User reader has no permissions to run the 'hset' command script: 5f, on @user_scr": true,
		"READONLY You can't write against a read only replica. script: 5f, on @user_script:9.":                         false,
	} {
		require.EqualValues(t, want, isRefusedInScript(message), message)
	}
}

// A key that another program has written is named, and left alone.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	limiter, server := realServer(t)
	client := server.Client()
	for _, policy := range Policies() {
		l := adhoc(t, time.Minute, 10, policy)
		take := takeOf(l, "alice", 1)
		key := limiter.key(&take)
		require.NoError(t, client.Set(t.Context(), key, "foreign", 0).Err())
		for _, n := range []int64{1, -1, 0} {
			take.N = n
			_, err := limiter.Take(t.Context(), []Take{take})
			var foreign *ForeignError
			require.ErrorAs(t, err, &foreign, policy)
		}
		require.Equal(t, "foreign", client.Get(t.Context(), key).Val(), policy)
		require.NoError(t, limiter.Reset(t.Context(), take))
		take.N = 1
		if a := mustTake(t, limiter, take); !a.Allowed || a.Decisions[0].Source != SourceRedis {
			t.Errorf("%s: after a reset %+v", policy, a)
		}
	}
}

// errOf is the error of a call of which nothing else matters.
func errOf[T any](_ T, err error) error { return err }
