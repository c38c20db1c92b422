// Package drills_test goes through what operators do after a loss, as docs/disasters.md writes it,
// on real servers under load, and takes the time. make test does those that tests/faults has nothing like,
// DRILLS=full (make drills) publishes more hits, one drill after the other.
package drills_test

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

func full() bool { return os.Getenv("DRILLS") == "full" }

// drill is what happened in one.
type drill struct {
	name string
	size int // hits before the loss

	steps []string
	took  time.Duration // from the loss until everything that is stored is counted
	lost  int64         // hits that were acknowledged and do not count
	twice int64
	note  string // what is said of hits that are lost

	mu    sync.Mutex
	truth map[string]int64
	acks  map[uint64]string // by sequence: the counter
}

func (d *drill) stored(counter string, sequence uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.truth[counter] += batch
	d.acks[sequence] = counter
}

func (d *drill) published() map[string]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.truth)
}

func (d *drill) hits() (sum int64) {
	for _, n := range d.published() {
		sum += n
	}
	return sum
}

// step is something that an operator does.
func (d *drill) step(t *testing.T, what string, do func()) {
	t.Helper()
	began := time.Now()
	do()
	d.steps = append(d.steps, what)
	t.Logf("%d. %s: %v", len(d.steps), what, time.Since(began).Round(time.Millisecond))
}

// awaitRecovery ends a drill that began with a loss at some moment: all must be exact, or the loss reported.
func (d *drill) awaitRecovery(s *site, began time.Time) {
	s.t.Helper()
	d.lost, d.twice = s.settle()
	d.took = time.Since(began)
	if d.lost+d.twice > 0 && !s.isLossReported() {
		s.t.Errorf("%d hits are lost and %d count twice, and no worker reports it", d.lost, d.twice)
	}
}

// requireExactCounts is for a drill that may lose nothing.
func (d *drill) requireExactCounts(s *site, began time.Time) {
	s.t.Helper()
	d.awaitRecovery(s, began)
	if d.lost+d.twice > 0 {
		s.t.Errorf("%d hits are lost and %d count twice", d.lost, d.twice)
	}
}

func TestDrills(t *testing.T) {
	size := 2000
	if full() {
		size = 200_000
	}
	more := full() || stack.All()
	var all []*drill
	t.Cleanup(func() {
		var table strings.Builder
		fmt.Fprintf(&table, "%-42s %5s %9s %9s %6s %6s\n", "drill", "steps", "seconds", "hits", "lost", "double")
		for _, d := range all {
			fmt.Fprintf(&table, "%-42s %5d %9.1f %9d %6d %6d  %s\n", d.name, len(d.steps), d.took.Seconds(), d.hits(), d.lost, d.twice, d.note)
		}
		t.Logf("\n%s", table.String())
	})
	for _, one := range []struct {
		name   string
		inTest bool // in make test
		run    func(*drill, *testing.T)
	}{
		{"Redis restored from a snapshot", true, (*drill).restoreRedisFromSnapshot},
		{"Redis restored from its append-only file", false, (*drill).restoreRedisFromFile},
		{"Redis lost", false, (*drill).loseRedis},
		{"NATS restored from a backup", true, (*drill).restoreNATSFromBackup},
		{"NATS and Redis lost, NATS restored", false, (*drill).loseBoth},
		{"a namespace rebuilt beside the old one", false, (*drill).countBeside},
		{"another version, and back", false, (*drill).changeVersion},
		{"a region lost", true, (*drill).loseRegion},
		{"a damaged replica of NATS", false, (*drill).repairReplica},
	} {
		if !one.inTest && !more {
			continue
		}
		d := &drill{name: one.name, size: size, truth: map[string]int64{}, acks: map[uint64]string{}}
		t.Run(one.name, func(t *testing.T) {
			if !full() {
				t.Parallel()
			}
			one.run(d, t)
		})
		all = append(all, d)
	}
}
