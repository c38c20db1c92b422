package read

import (
	"testing"
	"time"

	"tallyroll/internal/window/internal/cluster"
)

// One server: an estimate holds while clocks go on alike, however far apart
// they are, and is replaced when one of them has been set.
func TestEstimateOfOneClock(t *testing.T) {
	t.Parallel()
	var c clocks
	local, redis := time.Unix(1e9, 0), time.Unix(2e9, 0)
	if _, ok := c.now(local); ok {
		t.Error("a clock is known before anything was read")
	}
	ask := func(took, grace time.Duration) bool {
		t.Helper()
		at, ok := c.now(local)
		if !ok {
			at = instant{milli: redis.UnixMilli(), local: local}
		}
		sent := local
		local, redis = local.Add(took), redis.Add(took)
		return c.learn(at, sent, local, cluster.ServerTimes{"": redis}, grace)
	}
	const minute = time.Minute
	pass := func(by time.Duration) { local, redis = local.Add(by), redis.Add(by) }
	for _, step := range []struct {
		name        string
		set         time.Duration // Redis's clock
		took, grace time.Duration
		holds       bool
	}{
		{"first", 0, time.Millisecond, minute, true},
		{"again", 0, time.Millisecond, minute, true},
		{"a slow answer", 0, 2 * time.Second, minute, true},
		{"slower than the hashes live", 0, 5 * time.Second, time.Second, false},
		{"set forward", 40 * time.Second, time.Millisecond, minute, false},
		{"planned with it", 0, time.Millisecond, minute, true},
		{"set back", -4 * time.Minute, time.Millisecond, minute, false},
		{"planned with that", 0, time.Millisecond, minute, true},
		{"slewed", clockTolerance / 2, time.Millisecond, minute, true},
	} {
		pass(time.Hour)
		redis = redis.Add(step.set)
		if got := ask(step.took, step.grace); got != step.holds {
			t.Errorf("%s: holds %v, want %v", step.name, got, step.holds)
		}
	}
	if ahead, ok := c.difference(local); !ok || (ahead-redis.Sub(local)).Abs() > 3*time.Second {
		t.Errorf("Redis is %v ahead, %v; want %v", ahead, ok, redis.Sub(local))
	}
}

// Two questions that planned with the same estimate both learn that the clock was set.
func TestEveryQuestionLearnsThatTheClockWasSet(t *testing.T) {
	t.Parallel()
	for _, set := range []time.Duration{-time.Hour, time.Hour} {
		var c clocks
		local, redis := time.Unix(1e9, 0), time.Unix(2e9, 0)
		c.learn(instant{milli: redis.UnixMilli(), local: local}, local, local, cluster.ServerTimes{"": redis}, time.Minute)
		at, _ := c.now(local)
		for i := range 2 {
			if c.learn(at, local, local.Add(time.Millisecond), cluster.ServerTimes{"": redis.Add(set)}, 24*time.Hour) {
				t.Errorf("set by %v: question %d goes on with its plan", set, i)
			}
		}
		if at, _ = c.now(local); !c.learn(at, local, local.Add(time.Millisecond), cluster.ServerTimes{"": redis.Add(set)}, time.Minute) {
			t.Errorf("set by %v: what was planned with the new time does not hold", set)
		}
	}
}

// On a cluster now is the latest clock of all servers, whichever are asked: their
// differences make nobody plan again. A server that is gone is forgotten.
func TestLatestClockOfACluster(t *testing.T) {
	t.Parallel()
	var c clocks
	local := time.Unix(1e9, 0)
	ahead := map[string]time.Duration{"a": 10 * time.Second, "b": 0, "c": -10 * time.Second}
	ask := func(servers ...string) (holds bool) {
		t.Helper()
		times := cluster.ServerTimes{}
		at, ok := c.now(local)
		for _, s := range servers {
			times[s] = local.Add(ahead[s])
		}
		if !ok {
			at = instant{milli: times.Latest().UnixMilli(), local: local}
		}
		return c.learn(at, local, local, times, time.Minute)
	}
	now := func() time.Duration {
		at, _ := c.now(local)
		return time.UnixMilli(at.milli).Sub(local)
	}
	if !ask("b", "c") || now() != 0 {
		t.Errorf("now is %v ahead", now())
	}
	if ask("a") || now() != 10*time.Second {
		t.Errorf("the latest clock is not noticed: now is %v ahead", now())
	}
	for _, s := range []string{"c", "b", "a", "c", "a", "b"} {
		local = local.Add(20 * time.Second)
		if !ask(s) || now() != 10*time.Second {
			t.Errorf("%s: now is %v ahead", s, now())
		}
	}
	local = local.Add(2 * clockMemory)
	if ask("b"); now() != 0 {
		t.Errorf("without the first server now is %v ahead", now())
	}
}
