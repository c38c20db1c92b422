package main

import (
	"fmt"
	"time"
)

// report is what a run has done.
type report struct {
	tally tally
	took  time.Duration
	bad   badLines
	names int64 // distinct; 0 if nobody counted them
	open  int64 // hits that were read and are not acknowledged

	rejects *refusals // nil if nobody was asked
}

// String is the program's last line.
func (r report) String() string {
	seconds := r.took.Seconds()
	rate := 0.0
	if seconds > 0 {
		rate = float64(r.tally.hits) / seconds
	}
	s := fmt.Sprintf("published %d hits in %d messages in %.2f s (%.0f hits/s)", r.tally.hits, r.tally.messages, seconds, rate)
	if r.names > 0 {
		s += fmt.Sprintf("; %s distinct names", count(r.names))
	}
	s += fmt.Sprintf("; skipped %d bad lines", r.bad.count)
	if r.bad.count > 0 {
		line := ""
		if r.bad.first > 0 {
			line = fmt.Sprintf("line %d: ", r.bad.first)
		}
		s += fmt.Sprintf(" (first: %s%v)", line, r.bad.reason)
	}
	return s + r.rejects.String()
}
