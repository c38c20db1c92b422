package calendar

import (
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"tallyroll/internal/window"
)

// Period is what a limit counts in: each day, week, month or year of a zone.
type Period struct {
	name  string // of the window that ends now: today, week, month, year
	steps Steps
	last  atomic.Pointer[Turns]       // those found last
	days  *[32]atomic.Pointer[Period] // that start on other days
}

// Turns are the three periods around a moment: the one before its own, its own, and the next. A period has
// the number of its first date, which does not depend on the zone's offset then: so what counts in a period
// does not restart if the rules of a zone change, or if processes know others.
type Turns struct {
	Numbers [4]int64
	Begins  [4]int64 // Unix milliseconds; the last is the end of the third
}

var weekdays = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// ParsePeriod reads the name of a window other than yesterday, and the day that it starts on, which is empty,
// or 1 to 31 for a month, or a weekday for a week.
func ParsePeriod(name, starts string, zone *time.Location) (*Period, error) {
	step := map[string]string{Today: "1d", Week: "1w", Month: "1mo", Year: "1y"}[name]
	p := &Period{name: name, steps: Steps{name: step, Zone: zone}, days: new([32]atomic.Pointer[Period])}
	return p.Starting(starts)
}

// Starting returns the same period, as it starts on another day.
func (p *Period) Starting(starts string) (*Period, error) {
	day, err := strconv.Atoi(starts)
	switch {
	case starts == "":
		return p, nil
	case p.name == Month && err == nil && day >= 1 && day <= 31:
	case p.name == Week && slices.Contains(weekdays, starts):
		day = slices.Index(weekdays, starts) + 1
	default:
		return nil, fmt.Errorf("%.64q: must be a day from 1 to 31 for month, or a weekday, such as sunday, for week",
			starts)
	}
	if found := p.days[day].Load(); found != nil {
		return found, nil
	}
	out := &Period{name: p.name, steps: p.steps, days: p.days}
	out.steps.starts = day
	p.days[day].CompareAndSwap(nil, out)
	return p.days[day].Load(), nil
}

func (p *Period) String() string { return p.name }

// Zone is that of the periods.
func (p *Period) Zone() *time.Location { return p.steps.Zone }

// Longest is the most that a period lasts, except for changes of the clocks.
func (p *Period) Longest() time.Duration {
	const day = 24 * time.Hour
	return map[string]time.Duration{Today: day, Week: 7 * day, Month: 31 * day, Year: 366 * day}[p.name]
}

// Around returns the turns around a moment (Unix milliseconds).
func (p *Period) Around(milli int64) *Turns {
	if t := p.last.Load(); t != nil && t.Begins[1] <= milli && milli < t.Begins[2] {
		return t
	}
	own, first := p.steps.at(milli)
	before, firstBefore := p.steps.at(own.From - 1)
	next, firstNext := p.steps.at(own.To)
	_, firstAfter := p.steps.at(next.To)
	t := &Turns{Begins: [4]int64{before.From, own.From, own.To, next.To}}
	for i, date := range []time.Time{firstBefore, first, firstNext, firstAfter} {
		t.Numbers[i] = date.Unix() / (24 * 60 * 60)
	}
	p.last.Store(t)
	return t
}

// Starts is the day that it starts on, as Starting takes it; empty for the usual one.
func (p *Period) Starts() string {
	switch {
	case p.steps.starts == 0:
		return ""
	case p.name == Week:
		return weekdays[p.steps.starts-1]
	}
	return strconv.Itoa(p.steps.starts)
}

// Range is the part of its period that ends at now, as a Window has it: at the turn, the whole that has just
// ended.
func (p *Period) Range(now int64) window.Range {
	return window.Range{From: p.steps.At(now - 1).From, To: now}
}
