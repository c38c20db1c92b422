package limit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Without Redis a process decides by its own clock, but a period that Redis has begun does not begin again
// when the process's clock gets there.
func TestAProcessTurnsWithRedis(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	for name, ahead := range map[string]int64{"late": -30_000, "early": 30_000, "right": 0} {
		t.Run(name, func(t *testing.T) {
			s := newSettlers(t, client, 1)
			s.processes[0].limiter.now = func() time.Time { return time.UnixMilli(s.now + ahead) }
			l := &Limit{Name: "hour-" + name, Window: time.Hour, Policy: Fixed, Max: 5, Fail: FailLocal}
			require.NoError(t, l.Check())
			s.at(-worldStart%3_600_000/1000 + 3600) // a turn
			turn := s.now/3_600_000*3_600_000/1000 - worldStart/1000 + 3600
			s.at(turn - 40)
			require.Equal(t, "allowed true, remaining 0, not settled, by redis", s.ask(0, l, "take", "", 5))
			require.Contains(t, s.ask(0, l, "take", "", 1), "allowed false")
			s.at(turn + 1)
			require.Equal(t, "allowed true, remaining 0, not settled, by redis", s.ask(0, l, "take", "", 5))
			s.away(0, true)
			for _, at := range []int64{2, 29, 31, 3000} {
				s.at(turn + at)
				require.Contains(t, s.ask(0, l, "take", "", 1), "allowed false, remaining 0", "%d s after the turn", at)
			}
			s.at(turn + 3600 + 31) // without Redis, the next period begins by the process's clock
			require.Equal(t, "allowed true, remaining 3, not settled, by local", s.ask(0, l, "take", "", 2))
			s.at(turn + 7200 + 31) // owed hits of the last period are dropped
			s.away(0, false)
			require.Equal(t, "allowed true, remaining 4, not settled, by redis", s.ask(0, l, "take", "", 1))
		})
	}
}
