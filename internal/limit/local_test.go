package limit

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A question reports to Redis a part of what the process has allowed without it. The rest, and another
// caller's hits that may reach Redis later and not know of the rest, are added to what Redis has counted.
func TestHitsThatRedisLacksCountInAddition(t *testing.T) {
	t.Parallel()
	const owed, others, own, counted = 5, 3, 1, 2
	var a accounts
	now := time.Now()
	take := func(n int64) *request {
		takes := []Take{{Limit: &Limit{Max: 100, Window: time.Hour, Fail: FailLocal}, N: n}}
		return &request{takes: takes, keys: []string{"key"}, count: true}
	}
	if states := a.decideLocally(take(owed), now); !states[0].fits {
		t.Fatalf("%+v; want it to fit", states[0])
	}
	first := a.beginEntries(take(others), now)[0]
	if first.claimed != owed || first.extra != owed {
		t.Fatalf("the first request claims %d, extra %d; want %d both", first.claimed, first.extra, owed)
	}
	a.confirm(&first, 0) // nothing is counted yet, and its own hits are pending

	second := a.beginEntries(take(own), now)[0]
	if second.claimed != owed || second.extra != owed+others {
		t.Fatalf("claims %d, extra %d; want %d and %d", second.claimed, second.extra, owed, owed+others)
	}
	a.confirm(&second, counted)
	if want := int64(owed - counted + others); second.extra != want {
		t.Errorf("extra %d after %d of %d were counted; want %d: the rest and the other request's", second.extra, counted, owed, want)
	}
	third := a.beginEntries(take(own), now)[0]
	a.confirm(&third, owed-counted)
	require.EqualValues(t, 0, third.extra)
}

// What a process cannot remember, it does not give out: neither a slot for which it has no memory, nor one
// that may be held by a client whose lease came from Redis and for which it had no memory.
func TestNoSlotIsGivenOutThatCannotBeRemembered(t *testing.T) {
	t.Parallel()
	var a accounts
	now := time.Now()
	short, long := &Limit{Max: LocalKeys, Window: time.Minute, Policy: Concurrent, Fail: FailLocal}, &Limit{Max: 3, Window: time.Hour, Policy: Concurrent, Fail: FailLocal}
	take := func(l *Limit, key, lease string) *request {
		return &request{takes: []Take{{Limit: l, N: 1, Lease: lease}}, keys: []string{key}, count: true}
	}
	// acquire tries for more places than the limit has, and returns how many it gets.
	acquire := func(round string, at time.Time) (got int) {
		for i := range 50 {
			if states := a.decideLocally(take(long, "long", fmt.Sprint(round, i)), at); states[0].fits {
				got++
			}
		}
		return got
	}
	for i := range LocalKeys {
		a.addLease(fmt.Sprint("short", i%1000), fmt.Sprint(i), now.Add(short.Window), now)
	}
	require.EqualValues(t, 0, acquire("full ", now))
	a.addLease("long", "of Redis", now.Add(long.Window), now)
	require.EqualValues(t, 0, acquire("one too many ", now.Add(2*short.Window)))
	require.EqualValues(t, 3, acquire("room ", now.Add(long.Window)))
}
