package redrive

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/rejects"
)

// counts counts what became of the rejects. It is safe for concurrent use.
type counts struct {
	mu       sync.Mutex
	noStream bool // there is no HITS_REJECTED
	dryRun   bool
	cut      bool // an interrupt came before all were read
	found    int64
	matching int64
	would    int64 // with --dry-run: would be sent
	again    int64 // sent again by this run
	before   int64 // had been stored by another one
	left     map[string]int64
	kept     int64 // sent, but not removed from HITS_REJECTED
	keptWhy  error
	messages int64
	took     time.Duration
}

func (d *counts) countLeft(why string) { d.countSomeLeft(why, 1) }

func (d *counts) countSomeLeft(why string, n int64) {
	if n == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == nil {
		d.left = map[string]int64{}
	}
	d.left[why] += n
}

func (d *counts) countSent(before bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if before {
		d.before++
		return
	}
	d.again++
}

func (d *counts) countKept(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kept++
	d.keptWhy = why
}

// unknown is the number of rejects that were sent and whose outcome is unknown.
func (d *counts) unknown() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.matching - d.again - d.before
	for _, n := range d.left {
		all -= n
	}
	return all
}

// String is the program's last line.
func (d *counts) String() string {
	if d.noStream {
		return fmt.Sprintf("no stream %s: nothing was rejected, or ingest has never run", rejects.Stream)
	}
	s := fmt.Sprintf("found %s rejects, %s match; ", count(d.found), count(d.matching))
	if d.dryRun {
		s += fmt.Sprintf("would send %s again", count(d.would))
	} else {
		s += fmt.Sprintf("sent %s again in %s messages in %.2f s", count(d.again), count(d.messages), d.took.Seconds())
		if d.before > 0 {
			s += fmt.Sprintf(", %s had been sent before", count(d.before))
		}
	}
	var all int64
	var why []string
	for _, w := range slices.Sorted(maps.Keys(d.left)) {
		all += d.left[w]
		why = append(why, count(d.left[w])+" "+w)
	}
	s += "; left " + count(all)
	if all > 0 {
		s += ": " + strings.Join(why, ", ")
	}
	if d.cut {
		s += "; interrupted before all were read"
	}
	if d.kept > 0 {
		s += fmt.Sprintf("; %s are sent and still in %s: %v", count(d.kept), rejects.Stream, d.keptWhy)
	}
	return s
}

func count(n int64) string { return human.Thousands(float64(n)) }
