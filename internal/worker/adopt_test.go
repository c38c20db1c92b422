package worker

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// formerTiers were the default before DefaultTiers.
const formerTiers = "1s/1m,1m/1h,15m/1d,6h/30d"

// unset leaves the tiers and the shards to the worker, as an upgrade with default settings does.
var unset = []string{"TIERS=", "SHARDS="}

// recordOf is the text of a layout record as versions with formerTiers wrote it.
func recordOf(tiers string, shards int) string {
	return fmt.Sprintf(`{"version":1,"tiers":%q,"shards":%d,"hash":"xxhash64","id":"FORMER","epoch_cells":240}`, tiers, shards)
}

// The settings print their default from a tag, which cannot name the constant.
func TestTheDefaultTiersAreThoseOfTheSettings(t *testing.T) {
	t.Parallel()
	if s := parse(t); s.Tiers != window.DefaultTiers || s.TiersGiven || s.ShardsGiven {
		t.Errorf("TIERS is %s, given %v, and SHARDS given %v; want %s, and none given", s.Tiers, s.TiersGiven, s.ShardsGiven, window.DefaultTiers)
	}
}

// A worker goes on with a namespace that other defaults made, in the hashes that it has.
func TestANamespaceOutlivesTheDefaults(t *testing.T) {
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
	r.settled(10)
	keys := stack.Scan(t, r.redis.Client(), "test:*:h:6h:*")
	former.stop()

	r.start(unset...)
	r.logs.await(t, "going on with the tiers and shards of the namespace", formerTiers, window.DefaultTiers, `"shards":8`, `"default_shards":16`)
	publish()
	r.settled(20)
	got, err := r.reader.Answer(t.Context(), []window.Question{{Counter: "c", Span: window.Last(30 * 24 * time.Hour)}})
	if all := (window.Estimate{Total: 34, Lower: 34, Upper: 34}); err != nil || got.Answers[0].Estimate != all {
		t.Errorf("the last 30 days: %+v %v; want %+v", got, err, all)
	}
	if now := stack.Scan(t, r.redis.Client(), "test:*:h:6h:*"); len(now) != len(keys) {
		t.Errorf("hashes %q, and before %q", now, keys)
	}
	if record := r.redis.Client().Get(t.Context(), "test:layout").Val(); record != recordOf(formerTiers, 8) {
		t.Errorf("the record is now %s", record)
	}
}

// What is set must be the namespace's. What is not set is taken from it.
func TestWhatIsSetMustBeTheNamespaces(t *testing.T) {
	t.Parallel()
	client := boot.Redis{URL: redisURL(t, stack.Redis(t).URL())}.Client()
	defer client.Close()
	const many = "1s/2s,2s/4s,4s/8s,8s/16s,16s/32s,32s/64s,64s/128s,128s/256s"
	for _, c := range []struct {
		name, made string
		env        []string
		refused    string // empty: it goes on
	}{
		{"nothing is set", formerTiers, nil, ""},
		{"the tiers are", formerTiers, []string{"TIERS=" + formerTiers}, ""},
		{"the shards are", formerTiers, []string{"SHARDS=8"}, ""},
		{"both are", formerTiers, []string{"TIERS=" + formerTiers, "SHARDS=8"}, ""},
		{"other tiers are", formerTiers, []string{"TIERS=" + window.DefaultTiers}, "unset TIERS and SHARDS"},
		{"other shards are", formerTiers, []string{"SHARDS=16"}, "SHARDS=8"},
		{"one hit needs many commands", many, []string{"INGEST_MAX_COMMANDS=21"}, "INGEST_MAX_COMMANDS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, client.Set(t.Context(), "test:layout", recordOf(c.made, 8), 0).Err())
			store := window.NewStore(client, "test")
			layout, err := (&namespace{parse(t, c.env...), store, zerolog.Nop()}).open(t.Context())
			var usage boot.UsageError
			var setting *boot.SettingError
			if c.refused != "" {
				if !errors.As(err, &usage) && !errors.As(err, &setting) || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("%v; want an error with %q", err, c.refused)
				}
				return
			}
			if err != nil || layout.Tiers.String() != c.made || layout.Shards != 8 || store.ID() != "FORMER" {
				t.Errorf("%v, and a layout of %s in %d shards", err, layout.Tiers, layout.Shards)
			}
		})
	}
}

// The unique tiers of a namespace stay, too, also those of a record of before, which names none: a worker with "off" refuses
// to start, and one with the same or nothing set goes on and counts different ones. Likewise for a namespace that was made
// with "off". Nobody writes another record.
func TestUniqueTiersAreTheNamespaces(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	client := r.redis.Client()
	open := func(env ...string) (window.Layout, error) {
		return (&namespace{parse(t, append([]string{"TIERS=", "SHARDS="}, env...)...), window.NewStore(client, "test"), zerolog.Nop()}).open(t.Context())
	}
	visits := 0
	count := func(want bool, env ...string) {
		t.Helper()
		w := r.start(append([]string{"TIERS=", "SHARDS="}, env...)...)
		require.NoError(t, errOf(r.js.Publish(t.Context(), "hits.c", fmt.Appendf(nil, `{"unique":"u-%d"}`, visits))))
		visits++
		r.settled(int64(visits))
		w.stop()
		if cells := stack.Scan(t, client, "test:{*}:u:1d:*"); len(cells) > 0 != want {
			t.Errorf("unique cells of a day are %q, want any: %v", cells, want)
		}
	}
	for _, c := range []struct {
		record         string
		goesOn, refuse []string
		cells          bool
	}{
		{recordOf(window.DefaultTiers, 8), []string{"UNIQUE_TIERS=5m/1h,1h/1d,1d/32d", "UNIQUE_TIERS="}, []string{"UNIQUE_TIERS=off", "UNIQUE_TIERS=1h/1d"}, true},
		{strings.Replace(recordOf(window.DefaultTiers, 8), `"shards"`, `"unique_tiers":"off","shards"`, 1), []string{"UNIQUE_TIERS=off", "UNIQUE_TIERS="}, []string{"UNIQUE_TIERS=5m/1h,1h/1d,1d/32d"}, false},
	} {
		require.NoError(t, client.FlushAll(t.Context()).Err())
		require.NoError(t, client.Set(t.Context(), "test:layout", c.record, 0).Err())
		for _, env := range c.goesOn {
			count(c.cells, env)
			for _, other := range c.refuse {
				var mismatch *window.LayoutMismatchError
				if l, err := open(other); !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "UNIQUE_TIERS") {
					t.Errorf("%s is taken for %s: %v, unique tiers %s", other, c.record, err, l.UniqueTiers)
				}
			}
			count(c.cells, env) // what was refused has changed nothing
		}
		if record := client.Get(t.Context(), "test:layout").Val(); record != c.record {
			t.Errorf("the record is now %s, and was %s", record, c.record)
		}
	}
}

// Workers of both defaults begin on an empty Redis at the same time. One of them makes the namespace. Those with
// nothing set go on with it, whoever that was, and the others only if it is theirs.
func TestWorkersOfTwoDefaultsBeginTogether(t *testing.T) {
	t.Parallel()
	client := boot.Redis{URL: redisURL(t, stack.Redis(t).URL())}.Client()
	defer client.Close()
	for range 20 {
		require.NoError(t, client.FlushAll(t.Context()).Err())
		layouts, errs := make([]window.Layout, 8), make([]error, 8)
		var opening sync.WaitGroup
		for i := range layouts {
			settings := parse(t)
			if i%2 == 0 { // a version with the former default refuses others as if its own were set
				settings = parse(t, "TIERS="+formerTiers, "SHARDS=16")
			}
			own := &namespace{settings, window.NewStore(client, "test"), zerolog.Nop()}
			opening.Go(func() { layouts[i], errs[i] = own.open(t.Context()) })
		}
		opening.Wait()
		made, err := window.NewStore(client, "test").Layout(t.Context())
		require.NoError(t, err)
		for i, layout := range layouts {
			refused := i%2 == 0 && made.Tiers.String() != formerTiers
			if (errs[i] != nil) != refused || errs[i] == nil && layout.Tiers.String() != made.Tiers.String() {
				t.Errorf("worker %d: %v, and tiers %s; the namespace has %s", i, errs[i], layout.Tiers, made.Tiers)
			}
		}
	}
}

// A running worker never goes over to other tiers: it stands still, says why, and writes nothing. The next one
// goes on with them.
func TestARunningWorkerKeepsItsTiers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.counting(10, unset...)
	client := r.redis.Client()
	require.NoError(t, errOf(client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.FlushAll(t.Context())
		p.Set(t.Context(), "test:layout", recordOf(formerTiers, 16), 0)
		return nil
	})))
	r.publish(10)
	r.logs.await(t, "taking the stream again", "was made with TIERS="+formerTiers, "start the worker again")
	if keys := stack.Scan(t, client, "test:*:h:*"); len(keys) > 0 {
		t.Errorf("it has written %q", keys)
	}
	w.stop()
	r.start(unset...)
	r.settled(20)
}

// Without the record nobody can tell which hashes have the counts. A worker waits for whoever knows.
func TestALostLayoutIsNotMadeUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.counting(10, "TIERS="+formerTiers, "SHARDS=8")
	w.stop()
	require.NoError(t, r.redis.Client().Del(t.Context(), "test:layout").Err())
	r.start(unset...)
	r.logs.await(t, "waiting for Redis", "the layout record is lost", "set TIERS, UNIQUE_TIERS and SHARDS")
	r.start("TIERS="+formerTiers, "UNIQUE_TIERS="+window.DefaultUniqueTiers, "SHARDS=8")
	r.publish(10)
	r.settled(20)
}
