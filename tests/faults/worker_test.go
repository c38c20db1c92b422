package faults_test

import (
	"testing"
	"time"
)

func TestATakenOverStreamIsCountedAgain(t *testing.T) {
	onlyInAll(t)
	t.Parallel()
	for _, c := range []struct {
		name    string
		standby bool
	}{{"restarted at once", false}, {"another standing by", true}} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t)
			if c.standby {
				s.startWorker(s.redis)
			}
			l := startLoad(s, "c", false, 500)
			n := rounds(1, 1, 10)
			var sum, worst time.Duration
			for range n {
				s.awaitProgress(l)
				sleepUpTo(500 * time.Millisecond)
				dead := time.Now()
				s.workers[0].Kill()
				if !c.standby {
					s.workers[0].Start()
				}
				s.countedUpTo(l, dead)
				took := time.Since(dead)
				sum, worst = sum+took, max(worst, took)
				if c.standby {
					s.workers[0].Start()
				}
			}
			t.Logf("from the death to hits stored after it counted on every shard: mean %v, worst %v of %d",
				(sum / time.Duration(n)).Round(time.Millisecond), worst.Round(time.Millisecond), n)
			s.requireExactCounts(l, n)
		})
	}
}

func TestReplayIsMeasured(t *testing.T) {
	if !full() {
		t.Skip("a measurement, with FAULTS=full only")
	}
	s := start(t)
	l := newLoad(s, "c", false)
	const hits = 1_000_000
	l.burst(hits/batch, func() message { return l.plain(batch) })
	s.awaitProgress(l)
	began := time.Now()
	s.flushAll()
	s.countedUpTo(l, began)
	took := time.Since(began)
	t.Logf("replayed %d hits in %v: %.0f hits/s", l.sum(), took.Round(time.Millisecond), float64(l.sum())/took.Seconds())
	s.requireExactCounts(l, 1)
}
