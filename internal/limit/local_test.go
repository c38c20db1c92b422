package limit

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A question tells Redis a part of what the process has allowed without it. The rest, and another caller's hits that may
// reach Redis later and not know of the rest, count beside what Redis knows.
func TestHitsThatRedisLacksCountInAddition(t *testing.T) {
	t.Parallel()
	const owed, others, own, told = 5, 3, 1, 2
	var l local
	now := time.Now()
	takeOf := func(n int64) []Take {
		return []Take{{Limit: &Limit{Max: 100, Window: time.Hour, Fail: FailLocal}, N: n}}
	}
	keys := []string{"key"}
	if states := l.decide(takeOf(owed), keys, nil, now, true); !states[0].fits {
		t.Fatalf("%+v; want it to fit", states[0])
	}
	if first := l.begin(takeOf(others), keys, now, true); first[0].claimed != owed || first[0].beside != owed {
		t.Fatalf("the first question claims %d, beside %d; want %d both", first[0].claimed, first[0].beside, owed)
	} else {
		l.release(&first[0]) // it has told nothing yet, and its own hits are on their way
	}

	q := l.begin(takeOf(own), keys, now, true)
	if s := q[0]; s.claimed != owed || s.beside != owed+others {
		t.Fatalf("claims %d, beside %d; want %d and %d", s.claimed, s.beside, owed, owed+others)
	}
	l.told(&q[0], told)
	if want := int64(owed - told + others); q[0].beside != want {
		t.Errorf("beside %d after %d of %d were told; want %d: the rest and the other question's", q[0].beside, told, owed, want)
	}
	l.told(&q[0], owed-told)
	require.EqualValues(t, 0, q[0].beside)
}

// What a process cannot remember, it does not give out: neither a place for which there is no room, nor one that may be held
// by somebody whom Redis has let in and for whom there was no room.
func TestNoPlaceIsGivenOutThatCannotBeRemembered(t *testing.T) {
	t.Parallel()
	var l local
	now := time.Now()
	short, long := &Limit{Max: LocalKeys, Window: time.Minute, Policy: Concurrent, Fail: FailLocal}, &Limit{Max: 3, Window: time.Hour, Policy: Concurrent, Fail: FailLocal}
	take := func(l *Limit, lease string) []Take { return []Take{{Limit: l, N: 1, Lease: lease}} }
	// acquire tries for more places than the limit has, and returns how many it gets.
	acquire := func(round string, at time.Time) (got int) {
		for i := range 50 {
			if states := l.decide(take(long, fmt.Sprint(round, i)), []string{"long"}, nil, at, true); states[0].fits {
				got++
			}
		}
		return got
	}
	for i := range LocalKeys {
		l.hold(take(short, fmt.Sprint(i)), []string{fmt.Sprint("short", i%1000)}, []state{{ends: 1}}, now)
	}
	require.EqualValues(t, 0, acquire("full ", now))
	l.hold(take(long, "of Redis"), []string{"long"}, []state{{ends: 1}}, now)
	require.EqualValues(t, 0, acquire("one too many ", now.Add(2*short.Window)))
	require.EqualValues(t, 3, acquire("room ", now.Add(long.Window)))
}
