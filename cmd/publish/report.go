package main

import (
	"fmt"
	"time"

	"tallyroll/internal/human"
)

type report struct {
	tally tally
	took  time.Duration
	bad   badLines
	names int64 // distinct; 0 if not counted
	open  int64 // hits that were read and are not acknowledged
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
	return s
}

type tally struct{ hits, messages int64 }

// storedCounter is what a Sender has stored. The Sender's goroutine owns it until that has ended.
type storedCounter struct {
	tally
	shown func(hits int)
}

func (p *storedCounter) add(hits int) {
	p.hits += int64(hits)
	p.messages++
	p.shown(hits)
}

type badLines struct {
	count  int64
	first  int64 // its line number; 0: unknown
	reason error // why the first one is bad
}

func (b *badLines) add(count, number int64, reason error) {
	if b.count == 0 {
		b.first, b.reason = number, reason
	}
	b.count += count
}

func count(n int64) string { return human.Thousands(float64(n)) }
