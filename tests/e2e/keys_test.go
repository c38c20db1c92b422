package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A long life is simulated by the hits' own times: sixty days of them, each as
// old as it may be and older.
func TestRedisHoldsAtMostTwoHashesOfACounterAndTier(t *testing.T) {
	t.Parallel()
	s := start(t)
	rng := rand.New(rand.NewPCG(3, 4))
	now := time.Now()
	const counters, hits = 10, 10_000
	var b strings.Builder
	for i := range hits {
		age := time.Duration(float64(60*24*time.Hour) * rng.Float64() * rng.Float64() * rng.Float64())
		fmt.Fprintf(&b, `{"key":"c%d","ts":%d}`+"\n", i%counters, now.Add(9*time.Second-age).UnixMilli())
	}
	s.publish(strings.NewReader(b.String()), "--format", "ndjson")
	s.send("hits.last", "")
	s.awaitTotal("last", 1)
	s.awaitAllCounted()

	client := s.redis.Client()
	cells := regexp.MustCompile(`^tallyroll:\{(\d+)\}:(?:h:(\w+)|s):(-?\d+):(.*)$`)
	other := regexp.MustCompile(`^tallyroll:\{\d+\}:(names:-?\d+|top:(15m|1h):-?\d+:HITS)$|^tallyroll:idle$`)
	alive := map[string]int{}
	for _, key := range stack.Scan(t, client, "*") {
		ttl, err := client.TTL(t.Context(), key).Result()
		require.NoError(t, err)
		m := cells.FindStringSubmatch(key)
		if other.MatchString(key) {
			if ttl == -1 {
				t.Errorf("%s has no expiry", key)
			}
			continue
		}
		if m == nil {
			if key != "tallyroll:layout" && key != "tallyroll:layout:copy" && key != "tallyroll:streams" && !strings.Contains(key, "}:cursor:HITS") && !strings.HasSuffix(key, "}:erased") {
				t.Errorf("%s is none of ours", key)
			}
			continue
		}
		if ttl == -2 {
			continue // expired since the scan
		}
		if ttl == -1 { // 0 is less than half a second to live
			t.Errorf("%s has no expiry (%v)", key, ttl)
		}
		if e := client.ObjectEncoding(t.Context(), key).Val(); e != "listpack" && e != "" && m[2] != "" {
			t.Errorf("%s is kept as %s", key, e)
		}
		name := m[4]
		if name == "" {
			name = "all hits of " + m[1]
		}
		alive[name+" "+m[2]]++
	}
	for name, n := range alive {
		most := 2
		if strings.HasSuffix(name, " ") {
			most = 3 // sparse logs of 768 hours
		}
		if strings.HasSuffix(name, " 1h") {
			most = 5 // of 256 hours: in 32 days, and in the 8 days at most by which expiries are spread
		}
		if n > most {
			t.Errorf("%s has %d hashes", name, n)
		}
	}
	if len(alive) < counters*3 {
		t.Errorf("only %d counters and tiers were seen: %v", len(alive), alive)
	}
}
