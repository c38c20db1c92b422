package faults_test

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSoak mixes the faults for SOAK (such as 30m).
func TestSoak(t *testing.T) {
	if os.Getenv("SOAK") == "" {
		t.Skip("with SOAK=30m only: `make soak`")
	}
	lasts, err := time.ParseDuration(os.Getenv("SOAK"))
	require.NoError(t, err, "SOAK")
	// go test's own limit does not know how long SOAK is.
	hung := time.AfterFunc(lasts+15*time.Minute, func() { panic("the soak hangs") })
	defer hung.Stop()
	s := servers(t)
	p := startProxy(t, s.redis.Addr(), nil)
	for range 2 {
		s.worker(p)
	}
	l := startLoad(s, "c", false, 500)
	faults := []struct {
		name string
		do   func()
	}{
		{"worker killed", func() {
			w := s.workers[rand.IntN(len(s.workers))]
			w.Kill()
			w.Start()
		}},
		{"worker paused", func() {
			w := s.workers[rand.IntN(len(s.workers))]
			w.Pause()
			moment(3 * time.Second)
			w.Resume()
		}},
		{"Redis killed", func() { s.redis.Kill(); s.redis.Start() }},
		{"Redis emptied", s.flushAll},
		{"NATS killed", func() { s.nats.Kill(); s.nats.Start() }},
		{"both servers killed", func() { s.nats.Kill(); s.redis.Kill(); s.redis.Start(); s.nats.Start() }},
		{"connections killed", func() { s.killConnections(2 * time.Second) }},
		{"bad network", func() { s.spoil(p, 2*time.Second) }},
	}
	// A replay reads all there is: Redis is emptied rarely, so that a long soak is not all replay.
	marks := []time.Duration{lasts / 6, lasts / 2, lasts}
	made, emptied := make([]int, len(faults)), s.began
	total := 0
	for time.Since(s.began) < lasts {
		i := rand.IntN(len(faults))
		if faults[i].name == "Redis emptied" {
			if time.Since(emptied) < lasts/10 {
				continue
			}
			emptied = time.Now()
		}
		faults[i].do()
		made[i]++
		total++
		if rand.IntN(3) > 0 { // else the next fault comes while this one is being mended
			s.progress(l)
		}
		moment(time.Second)
		for len(marks) > 0 && time.Since(s.began) > marks[0] {
			s.logMemory()
			marks = marks[1:]
		}
	}
	if len(marks) > 0 {
		s.logMemory()
	}
	for i, f := range faults {
		t.Logf("%s: %d times", f.name, made[i])
	}
	s.settled(l, total)
}

func (s *system) logMemory() {
	s.t.Helper()
	for i, w := range s.workers {
		s.t.Logf("after %v worker %d holds %d MiB", time.Since(s.began).Round(time.Second), i, w.RSS()>>20)
	}
}
