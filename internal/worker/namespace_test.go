package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/setting"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// formerTiers were the default before DefaultTiers.
const formerTiers = "1s/1m,1m/1h,15m/1d,6h/30d"

// unset leaves the tiers and the shards to the worker, as an upgrade with default settings does.
var unset = []string{"TIERS=", "SHARDS="}

// recordOf is the text of a layout record as versions with formerTiers wrote it.
func recordOf(tiers string, shards int) string {
	return fmt.Sprintf(`{"version":3,"tiers":%q,"shards":%d,"hash":"xxhash64","id":"FORMER","epoch_cells":240}`, tiers, shards)
}

// The settings print their default from a tag, which cannot name the constant.
func TestDefaultTiersAreThoseOfTheSettings(t *testing.T) {
	t.Parallel()
	if s := parseSettings(t); s.Tiers != window.DefaultTiers || s.TiersGiven || s.ShardsGiven {
		t.Errorf("TIERS is %s, given %v, and SHARDS given %v; want %s, and none given", s.Tiers, s.TiersGiven, s.ShardsGiven, window.DefaultTiers)
	}
}

// A worker goes on with a namespace that other defaults made, in the hashes that it has.
func TestNamespaceKeepsTheTiersOfFormerDefaults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	require.NoError(t, r.redis.Client().Set(t.Context(), "test:layout", recordOf(formerTiers, 8), 0).Err())
	// A hit of the coarsest tier: its epochs span 60 days, and would span 64 with the present default.
	long := time.Now().Add(-25 * 24 * time.Hour)
	publish := func() {
		t.Helper()
		require.NoError(t, errOf(r.js.Publish(t.Context(), "hits.c", fmt.Appendf(nil, `{"n":7,"ts":%d}`, long.UnixMilli()))))
		r.publish(10)
	}
	former := r.start("TIERS="+formerTiers, "SHARDS=8")
	publish()
	r.awaitTotal(10)
	keys := stack.Scan(t, r.redis.Client(), "test:*:h:6h:*")
	former.stop()

	r.start(unset...)
	r.logs.await(t, "using the tiers and shards of the namespace", formerTiers, window.DefaultTiers, `"shards":8`, `"default_shards":16`)
	publish()
	r.awaitTotal(20)
	got, err := r.reader.Answer(t.Context(), []window.Question{{Counter: "c", Span: window.Last(30 * 24 * time.Hour)}})
	if all := (window.Estimate{Total: 34, Lower: 34, Upper: 34}); err != nil || got.Answers[0].Estimate != all {
		t.Errorf("the last 30 days: %+v %v; want %+v", got, err, all)
	}
	require.Len(t, stack.Scan(t, r.redis.Client(), "test:*:h:6h:*"), len(keys))
	require.Equal(t, recordOf(formerTiers, 8), r.redis.Client().Get(t.Context(), "test:layout").Val())
}

// What is set must be the namespace's. What is not set is taken from it.
func TestSettingsOtherThanTheNamespacesAreRefused(t *testing.T) {
	t.Parallel()
	client := stack.ProgramClient(t, stack.SharedRedis(t).URL())
	const many = "1s/2h,2s/4h,4s/8h,8s/16h,16s/32h,32s/64h,64s/128h,128s/256h"
	for _, c := range []struct {
		name, created string
		env           []string
		refused       string // empty: it goes on
	}{
		{"nothing is set", formerTiers, nil, ""},
		{"the tiers are", formerTiers, []string{"TIERS=" + formerTiers}, ""},
		{"the shards are", formerTiers, []string{"SHARDS=8"}, ""},
		{"both are", formerTiers, []string{"TIERS=" + formerTiers, "SHARDS=8"}, ""},
		{"other tiers are", formerTiers, []string{"TIERS=" + window.DefaultTiers}, "unset TIERS and SHARDS"},
		{"other shards are", formerTiers, []string{"SHARDS=16"}, "SHARDS=8"},
		{"one hit needs many commands", many, []string{"INGEST_MAX_COMMANDS=29"}, "INGEST_MAX_COMMANDS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, client.Set(t.Context(), "test:layout", recordOf(c.created, 8), 0).Err())
			store := schema.NewStore(client, "test")
			layout, err := (&namespace{parseSettings(t, c.env...), store, zerolog.Nop()}).open(t.Context())
			var usage setting.UsageError
			var setting *setting.Error
			if c.refused != "" {
				if !errors.As(err, &usage) && !errors.As(err, &setting) || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("%v; want an error with %q", err, c.refused)
				}
				return
			}
			if err != nil || layout.Tiers.String() != c.created || layout.Shards != 8 || store.ID() != "FORMER" {
				t.Errorf("%v, and a layout of %s in %d shards", err, layout.Tiers, layout.Shards)
			}
		})
	}
}

// The unique tiers of a namespace stay, too, also those of an older record, which names none: a worker with
// "off" refuses to start, and one with the same or nothing set goes on and counts unique values.
// The same holds for a namespace that was created with "off". No worker writes another record.
func TestUniqueTiersOtherThanTheNamespacesAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	client := r.redis.Client()
	open := func(env ...string) (window.Layout, error) {
		return (&namespace{parseSettings(t, append(env, unset...)...), schema.NewStore(client, "test"), zerolog.Nop()}).open(t.Context())
	}
	visits := 0
	count := func(want bool, env ...string) {
		t.Helper()
		w := r.start(append(env, unset...)...)
		require.NoError(t, errOf(r.js.Publish(t.Context(), "hits.c", fmt.Appendf(nil, `{"unique":"u-%d"}`, visits))))
		visits++
		r.awaitTotal(int64(visits))
		w.stop()
		require.Equal(t, want, len(stack.Scan(t, client, "test:{*}:u:1d:*")) > 0, "unique cells of a day")
	}
	for _, c := range []struct {
		record         string
		goesOn, refuse []string
		cells          bool
	}{
		{recordOf(window.DefaultTiers, 8), []string{"UNIQUE_TIERS=5m/1h,1h/1d,1d/32d", "UNIQUE_TIERS="}, []string{"UNIQUE_TIERS=off", "UNIQUE_TIERS=1h/1d"}, true},
		{strings.Replace(recordOf(window.DefaultTiers, 8), `"shards"`, `"unique_tiers":"off","shards"`, 1), []string{"UNIQUE_TIERS=off", "UNIQUE_TIERS="}, []string{"UNIQUE_TIERS=5m/1h,1h/1d,1d/32d"}, false},
	} {
		require.NoError(t, client.FlushDB(t.Context()).Err())
		require.NoError(t, client.Set(t.Context(), "test:layout", c.record, 0).Err())
		for _, env := range c.goesOn {
			count(c.cells, env)
			for _, other := range c.refuse {
				var mismatch *schema.LayoutMismatchError
				if l, err := open(other); !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "UNIQUE_TIERS") {
					t.Errorf("%s is taken for %s: %v, unique tiers %s", other, c.record, err, l.UniqueTiers)
				}
			}
			count(c.cells, env) // what was refused has changed nothing
		}
		require.Equal(t, c.record, client.Get(t.Context(), "test:layout").Val())
	}
}

// Workers of both defaults begin on an empty Redis at the same time. One of them makes the namespace. Those
// with nothing set continue with it, whichever worker that was, and the others only if it is theirs.
func TestOneOfManyWorkersOfTwoDefaultsCreatesTheNamespace(t *testing.T) {
	t.Parallel()
	client := stack.ProgramClient(t, stack.SharedRedis(t).URL())
	for range 20 {
		require.NoError(t, client.FlushDB(t.Context()).Err())
		layouts, errs := make([]window.Layout, 8), make([]error, 8)
		var opening sync.WaitGroup
		for i := range layouts {
			settings := parseSettings(t)
			if i%2 == 0 { // a version with the former default refuses others as if its own were set
				settings = parseSettings(t, "TIERS="+formerTiers, "SHARDS=16")
			}
			own := &namespace{settings, schema.NewStore(client, "test"), zerolog.Nop()}
			opening.Go(func() { layouts[i], errs[i] = own.open(t.Context()) })
		}
		opening.Wait()
		created, err := schema.NewStore(client, "test").Layout(t.Context())
		require.NoError(t, err)
		for i, layout := range layouts {
			refused := i%2 == 0 && created.Tiers.String() != formerTiers
			if (errs[i] != nil) != refused || errs[i] == nil && layout.Tiers.String() != created.Tiers.String() {
				t.Errorf("worker %d: %v, and tiers %s; the namespace has %s", i, errs[i], layout.Tiers, created.Tiers)
			}
		}
	}
}

// A running worker never goes over to other tiers: it stands still, says why, and writes nothing. The next
// one goes on with them.
func TestRunningWorkerNeverTakesOtherTiers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.startCounting(10, unset...)
	client := r.redis.Client()
	require.NoError(t, errOf(client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.FlushDB(t.Context())
		p.Set(t.Context(), "test:layout", recordOf(formerTiers, 16), 0)
		return nil
	})))
	r.publish(10)
	r.logs.await(t, "restarting the session", "was made with TIERS="+formerTiers, "start the worker again")
	require.Empty(t, stack.Scan(t, client, "test:*:[hs]:*"))
	w.stop()
	r.start(unset...)
	r.awaitTotal(20)
}

func init() { restoredWithin = 100 * time.Millisecond }

// A lost layout record is restored from its copy, whatever the settings: also that of changed tiers, and one
// of another version. A change that is under way goes on. Settings alone restore nothing: without a copy, the
// worker ends, and names the key. A namespace without streams is a new one.
func TestLostLayoutIsRestoredOrStopsTheWorker(t *testing.T) {
	t.Parallel()
	client := stack.ProgramClient(t, stack.SharedRedis(t).URL())
	given := []string{"TIERS=" + window.DefaultTiers, "UNIQUE_TIERS=" + window.DefaultUniqueTiers, "SHARDS=8"}
	open := func(env []string) (window.Layout, error) {
		return (&namespace{parseSettings(t, env...), schema.NewStore(client, "test"), zerolog.Nop()}).open(t.Context())
	}
	former := recordOf(window.DefaultTiers, 8)
	changed := strings.Replace(former, `"epoch_cells":240`, `"epoch_cells":240,"generation":1,"complete_from":[0,0,0,0]`, 1)
	for _, record := range []string{former, changed, recordOf(formerTiers, 3),
		strings.TrimSuffix(changed, "}") + `,"retier":{"phase":"switched","tiers":"1s/1m","epoch_cells":240}}`} {
		for _, env := range [][]string{nil, unset, given} {
			ctx := t.Context()
			require.NoError(t, client.FlushDB(ctx).Err())
			require.NoError(t, client.Set(ctx, "test:layout", record, 0).Err())
			want, err := open(nil)
			require.NoError(t, err)
			require.NoError(t, schema.NewStore(client, "test").AddStream(ctx, "HITS"))
			require.NoError(t, client.Del(ctx, "test:layout").Err())
			have, err := open(env)
			var mismatch *schema.LayoutMismatchError
			if !errors.As(err, &mismatch) || record != recordOf(formerTiers, 3) {
				require.NoError(t, err)
				require.Equal(t, want, have)
			}
			require.JSONEq(t, client.Get(ctx, "test:layout:copy").Val(), client.Get(ctx, "test:layout").Val())
			require.Equal(t, strings.Contains(record, "retier"), strings.Contains(client.Get(ctx, "test:layout").Val(), "switched"))

			require.NoError(t, client.Del(ctx, "test:layout", "test:layout:copy").Err())
			_, err = open(env)
			var usage setting.UsageError
			require.ErrorAs(t, err, &usage)
			require.ErrorContains(t, err, "test:layout and its copy are missing")
			require.ErrorContains(t, err, "docs/disasters.md")
			require.Zero(t, client.Exists(ctx, "test:layout").Val())

			require.NoError(t, client.Del(ctx, "test:streams").Err())
			_, err = open(env)
			require.NoError(t, err)
		}
	}
}

// A running worker writes the record and its copy again, and the next one goes on with either of them.
func TestLostLayoutIsWrittenAgainByARunningWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.startCounting(10, "TIERS="+formerTiers, "SHARDS=8")
	require.NoError(t, r.redis.Client().Del(t.Context(), "test:layout", "test:layout:copy").Err())
	stack.Eventually(t, "the record and its copy", func() (bool, string) {
		return r.redis.Client().Exists(t.Context(), "test:layout", "test:layout:copy").Val() == 2, ""
	})
	w.stop()
	require.NoError(t, r.redis.Client().Del(t.Context(), "test:layout").Err())
	r.start(unset...)
	r.publish(10)
	r.awaitTotal(20)
}

// failingCommands makes commands of a client fail, each with the errors given for its
// name, one after the other, before it is let through.
type failingCommands map[string][]error

func (f failingCommands) DialHook(next redis.DialHook) redis.DialHook { return next }
func (f failingCommands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f failingCommands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
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
func TestStartingWorkerWaitsForRedis(t *testing.T) {
	t.Parallel()
	client := stack.ProgramClient(t, stack.SharedRedis(t).URL())
	lost := &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
	faults := failingCommands{
		"config": {lost, lost},
		"set":    {lost, replyError("READONLY You can't write against a read only replica."), replyError("CLUSTERDOWN The cluster is down")},
		"get":    {replyError("LOADING Redis is loading the dataset in memory"), replyError("MASTERDOWN Link with MASTER is down")},
	}
	client.AddHook(faults)
	w := &namespace{parseSettings(t), schema.NewStore(client, "test"), zerolog.Nop()}
	layout, err := w.open(t.Context())
	require.NoError(t, err)
	for command, left := range faults {
		require.Empty(t, left, "%s was not asked again", command)
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
func TestStartingWorkerEndsOnWhatWaitingCannotMend(t *testing.T) {
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
			other := window.Layout{Tiers: parseSettings(t).layout.Tiers, Shards: 3}
			require.NoError(t, schema.NewStore(admin, "test").EnsureLayout(t.Context(), other))
		}, "", "SHARDS=3"},
		{"a layout of another version", func() { do("set", "test:layout", `{"version":99}`) }, "", "TALLYROLL_NAMESPACE"},
		{"a malformed layout", func() { do("set", "test:layout", "x") }, "", "layout record"},
		{"another kind of key", func() { do("del", "test:layout"); do("lpush", "test:layout", "x") }, "", "is not Tallyroll's"},
		{"no right", func() { do("acl", "setuser", "u", "on", ">p", "~*", "+@all", "-set") }, "u:p@", "'set'"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.prepare()
			client := stack.ProgramClient(t, "redis://"+test.user+server.Addr())
			w := &namespace{parseSettings(t, "SHARDS=16"), schema.NewStore(client, "test"), zerolog.Nop()}
			_, err := w.open(t.Context())
			var usage setting.UsageError
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want a UsageError with %q", err, test.want)
			}
		})
	}
}

// While a worker runs, Redis loses everything, and a worker of another version recreates the namespace, with
// hashes that span two windows. The running worker then writes such hashes, too, and no others.
func TestNamespaceRecreatedWithOtherEpochsIsWrittenWithThese(t *testing.T) {
	t.Parallel()
	const tiers = "1s/1h,1m/1d"
	r := newRig(t)
	r.createStream(0)
	record := func(epochCells int) string {
		return fmt.Sprintf(`{"version":3,"tiers":%q,"shards":4,"hash":"xxhash64","id":"BEFORE","epoch_cells":%d}`, tiers, epochCells)
	}
	require.NoError(t, r.redis.Client().Set(t.Context(), "test:layout", record(256), 0).Err())
	w := r.start("TIERS="+tiers, "SHARDS=4")
	spans := func(seconds int64) {
		t.Helper()
		hashes := stack.Scan(t, r.redis.Client(), "test:*:h:1s:*")
		if len(hashes) == 0 {
			t.Error("there are no hashes of seconds")
		}
		for _, key := range hashes {
			epoch := r.redis.Client().Time(t.Context()).Val().Unix() / seconds
			// The hits are of this epoch, or of the one before if that has just ended.
			if !strings.Contains(key, fmt.Sprintf(":1s:%d:", epoch)) && !strings.Contains(key, fmt.Sprintf(":1s:%d:", epoch-1)) {
				t.Errorf("%s does not span %d s", key, seconds)
			}
		}
	}
	r.publish(50)
	r.awaitTotal(50)
	spans(256)

	require.NoError(t, errOf(r.redis.Client().TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.FlushDB(t.Context())
		p.Set(t.Context(), "test:layout", record(7200), 0)
		return nil
	})))
	r.publish(50)
	r.awaitHits(100)
	spans(7200)

	// And the next worker takes the namespace as it is.
	w.stop()
	r.start("TIERS=" + tiers)
	r.publish(50)
	r.awaitTotal(150)
	spans(7200)

	// If Redis loses everything again, it makes the namespace what it was.
	require.NoError(t, r.redis.Client().FlushDB(t.Context()).Err())
	r.awaitHits(150)
	spans(7200)
}
