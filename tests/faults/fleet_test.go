package faults_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

const fleetStreams = 8

// fleet starts the servers, the streams, and so many workers named w0, w1, ….
func fleet(t *testing.T, workers int) *system {
	t.Helper()
	s := startWithoutStream(t)
	for i := range fleetStreams {
		s.createStream(fmt.Sprintf("HITS_%d", i), fmt.Sprintf("hitp.%d.>", i))
	}
	for range workers {
		s.join()
	}
	return s
}

func (s *system) join() {
	s.t.Helper()
	s.startWorker(s.redis, fmt.Sprintf("INGEST_WORKER=w%d", len(s.workers)))
}

// ownership is one line of a worker's log, about the streams that it reads.
type ownership struct {
	Time    time.Time
	Worker  string
	Workers int
	Of      int
	Streams []string
}

// owners reads from the logs who owned what when, in order. Times in logs are whole
// seconds; the lines of one worker are in order.
func (s *system) owners() (all []ownership) {
	s.t.Helper()
	for _, w := range s.workers {
		for line := range strings.Lines(w.Logs()) {
			if !strings.Contains(line, `"this worker's streams"`) && !strings.Contains(line, "standing by") {
				continue
			}
			var o ownership
			require.NoErrorf(s.t, json.Unmarshal([]byte(line), &o), "log line %s", line)
			all = append(all, o)
		}
	}
	slices.SortStableFunc(all, func(a, b ownership) int { return a.Time.Compare(b.Time) })
	return all
}

// awaitShares waits until so many workers, those at the given places, say that they
// have all streams between them, each one once.
func (s *system) awaitShares(places ...int) time.Duration {
	s.t.Helper()
	began := time.Now()
	stack.Eventually(s.t, fmt.Sprintf("%d workers to share %d streams", len(places), fleetStreams), func() (bool, string) {
		last := map[string]ownership{}
		for _, o := range s.owners() {
			last[o.Worker] = o
		}
		var all []string
		for _, i := range places {
			o := last[fmt.Sprintf("w%d", i)]
			if o.Workers != len(places) {
				return false, fmt.Sprint(last)
			}
			all = append(all, o.Streams...)
		}
		slices.Sort(all)
		return len(all) == fleetStreams && len(slices.Compact(all)) == fleetStreams, fmt.Sprint(last)
	})
	return time.Since(began)
}

func TestCountsAreExactWhileAFleetGrowsAndShrinks(t *testing.T) {
	t.Parallel()
	s := fleet(t, 1)
	hits, size := rounds(20_000, 100_000, 2_000_000), rounds(400, 2_000, 50_000)
	l := newSpreadLoad(s, "f", false, size, fleetStreams)
	published := make(chan struct{})
	go func() {
		defer close(published)
		l.publishAll(hits/batch, 2000)
	}()
	t.Logf("1 worker: %v", s.awaitShares(0))
	for range 3 {
		s.join()
	}
	t.Logf("4 workers: %v", s.awaitShares(0, 1, 2, 3))
	s.workers[0].Kill() // it plans for all
	require.Equal(t, 0, s.workers[2].Stop())
	t.Logf("2 workers, one killed and one stopped: %v", s.awaitShares(1, 3))
	if full() || stack.All() {
		for range 3 {
			s.join()
		}
		t.Logf("5 workers: %v", s.awaitShares(1, 3, 4, 5, 6))
		s.workers[4].Kill()
		s.join()
		t.Logf("one killed, another joined: %v", s.awaitShares(1, 3, 5, 6, 7))
	}
	<-published
	s.requireExactCounts(l, 2)
	for _, o := range s.owners() {
		t.Logf("%s  %s of %d workers: %s", o.Time.Format(time.TimeOnly), o.Worker, o.Workers, strings.Join(o.Streams, " "))
	}
}

// publishAll publishes messages of batch hits at a rate, on several goroutines.
func (l *load) publishAll(messages, perSecond int) {
	tick := time.NewTicker(time.Second * publishers / time.Duration(perSecond))
	defer tick.Stop()
	work := make(chan message)
	for range publishers * 4 {
		l.running.Go(func() {
			for m := range work {
				l.publish(l.t.Context(), m)
			}
		})
	}
	for left := messages; left > 0; left -= publishers {
		<-tick.C
		for range min(publishers, left) {
			work <- l.plain(batch)
		}
	}
	close(work)
}

func TestCountsAreExactThroughARollingRestart(t *testing.T) {
	onlyInAll(t)
	t.Parallel()
	s := fleet(t, 4)
	s.awaitShares(0, 1, 2, 3)
	l := newSpreadLoad(s, "r", false, counters, fleetStreams).start(1000)
	s.awaitProgress(l)

	before := s.watchAge(l)
	for range 5 { // each takes a second or so
		s.awaitProgress(l)
	}
	t.Logf("age of as_of before: %s", ages(before()))
	during := s.watchAge(l)
	for round := range rounds(1, 1, 5) {
		for i, w := range s.workers {
			if code := w.Stop(); code != 0 {
				t.Errorf("round %d: worker %d ends with code %d", round, i, code)
			}
			w.Start()
		}
	}
	s.awaitProgress(l)
	took := during()
	t.Logf("age of as_of during restarts: %s", ages(took))
	if worst := slices.Max(took); worst > 20*time.Second {
		t.Errorf("as_of stood still for %v", worst)
	}
	s.requireExactCounts(l, len(s.workers))
}

// watchAge looks at the age of as_of, which is that of the stream furthest behind,
// until the returned function is called.
func (s *system) watchAge(l *load) (end func() []time.Duration) {
	stop, looks := make(chan struct{}), make(chan []time.Duration)
	keys := l.names()[:few]
	go func() {
		var out []time.Duration
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				looks <- out
				return
			case <-tick.C:
				if answer, err := s.ask(keys); err == nil {
					out = append(out, time.Since(answer.AsOf))
				}
			}
		}
	}()
	return func() []time.Duration {
		close(stop)
		return <-looks
	}
}

func ages(looks []time.Duration) string {
	slices.Sort(looks)
	n := len(looks)
	return fmt.Sprintf("p50 %v, p99 %v, max %v of %d looks", looks[n/2].Round(time.Millisecond),
		looks[n*99/100].Round(time.Millisecond), looks[n-1].Round(time.Millisecond), n)
}
