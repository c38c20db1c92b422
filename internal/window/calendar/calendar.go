// Package calendar has the windows and steps of a time zone's calendar: days, weeks, months and years. It is
// pure.
package calendar

import (
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"
	_ "time/tzdata" // the zones, if the machine has none

	"tallyroll/internal/window"
)

// The names of windows. All but yesterday end at the moment of the question.
const (
	Today     = "today"
	Yesterday = "yesterday"
	Week      = "week" // since Monday
	Month     = "month"
	Year      = "year"
)

// What is allowed, for errors.
const (
	WindowHint = "today, yesterday, week, month or year"
	StepHint   = "1d, 1w, 1mo or 1y"
	zoneHint   = "a name of the IANA time zones, such as Europe/Berlin or UTC"
)

// Window is a window.Calendar.
type Window struct {
	Name string
	Zone *time.Location
}

// Range returns the window for a moment (Unix milliseconds). It is never empty: at midnight itself, today is
// the whole day that has just ended. So are week, month and year.
func (w Window) Range(now int64) window.Range {
	if w.Name == Yesterday {
		end := FirstMoment(dateIn(w.Zone, now), w.Zone)
		return window.Range{From: FirstMoment(dateIn(w.Zone, end-1), w.Zone), To: end}
	}
	date := dateIn(w.Zone, now-1) // the last that the window includes
	switch w.Name {
	case Week:
		date = mondayOf(date)
	case Month:
		date = firstOf(date)
	case Year:
		date = newYearOf(date)
	}
	return window.Range{From: FirstMoment(date, w.Zone), To: now}
}

// Steps are the days, weeks (from Monday), months or years of a zone: 1d, 1w, 1mo, 1y.
type Steps struct {
	name string
	Zone *time.Location
	// starts is the day that months begin on, of a shorter one the last; or that weeks do, from 1 for Monday. 0
	// is 1.
	starts int
}

// ParseSteps returns false for a text that is no such step.
func ParseSteps(text string, zone *time.Location) (steps Steps, ok bool) {
	return Steps{name: text, Zone: zone}, slices.Contains([]string{"1d", "1w", "1mo", "1y"}, text)
}

func (s Steps) String() string { return s.name }

// IsWindow reports whether a text is the name of a window.
func IsWindow(text string) bool {
	return slices.Contains([]string{Today, Yesterday, Week, Month, Year}, text)
}

// zoneName excludes other files in a folder of zones, such as copies with leap seconds (right/…).
var zoneName = regexp.MustCompile(`^[A-Z][A-Za-z0-9_+-]{0,31}(/[A-Za-z0-9_+-]{1,32}){0,3}$`)

// ParseZone returns the zone of a name, or UTC if it is empty.
func ParseZone(text string) (*time.Location, error) {
	if text == "" {
		return time.UTC, nil
	}
	name := strings.ReplaceAll(text, " ", "+") // a query string turns the + of Etc/GMT+5 into a space
	if zoneName.MatchString(name) && name != "Local" {
		if zone, err := time.LoadLocation(name); err == nil {
			return zone, nil
		}
	}
	return nil, fmt.Errorf("%.64q is not a time zone: must be %s", text, zoneHint)
}

// At returns the step that holds a moment (Unix milliseconds).
func (s Steps) At(milli int64) window.Range {
	r, _ := s.at(milli)
	return r
}

// at returns the step that holds a moment, and the date of its first day.
func (s Steps) at(milli int64) (window.Range, time.Time) {
	first, next := s.around(dateIn(s.Zone, milli))
	end := FirstMoment(next, s.Zone)
	if end > milli {
		return window.Range{From: FirstMoment(first, s.Zone), To: end}, first
	}
	// A change of the clocks repeats some of a date, and the repeated part belongs to the next one.
	return s.at(end)
}

// around returns the first dates of the step that holds a date, and of the next one.
func (s Steps) around(date time.Time) (first, next time.Time) {
	starts := max(s.starts, 1)
	switch s.name {
	case "1w":
		first = mondayOf(date.AddDate(0, 0, 1-starts)).AddDate(0, 0, starts-1)
		return first, first.AddDate(0, 0, 7)
	case "1mo":
		begin := func(months int) time.Time {
			first := firstOf(date).AddDate(0, months, 0)
			return first.AddDate(0, 0, min(starts, first.AddDate(0, 1, -1).Day())-1)
		}
		if date.Before(begin(0)) {
			return begin(-1), begin(0)
		}
		return begin(0), begin(1)
	case "1y":
		return newYearOf(date), newYearOf(date).AddDate(1, 0, 0)
	}
	return date, date.AddDate(0, 0, 1)
}

// dateIn is the date that a zone's clocks show at a moment, as its midnight in UTC.
func dateIn(zone *time.Location, milli int64) time.Time {
	year, month, day := time.UnixMilli(milli).In(zone).Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// mondayOf is the Monday of a date's week (ISO 8601).
func mondayOf(date time.Time) time.Time { return date.AddDate(0, 0, -(int(date.Weekday())+6)%7) }

func firstOf(date time.Time) time.Time { return date.AddDate(0, 0, 1-date.Day()) }

func newYearOf(date time.Time) time.Time { return date.AddDate(0, 0, 1-date.YearDay()) }

// FirstMoment returns the first moment (Unix milliseconds) at which a zone's clocks show the date, which is
// its midnight in UTC, or a later one. If midnight does not exist, or comes twice, time.Date does not specify
// which moment it returns.
func FirstMoment(date time.Time, zone *time.Location) int64 {
	const hour = 60 * 60
	midnight := date.Unix()
	offset := func(at int64) int64 {
		_, seconds := time.Unix(at, 0).In(zone).Zone()
		return int64(seconds)
	}
	// It goes hour by hour, because Time.ZoneBounds may return an end that is not after the time itself.
	for at := midnight - 26*hour; ; at += hour {
		before, after := offset(at), offset(at+hour)
		change := at + hour
		if before != after {
			change = at + int64(sort.Search(hour, func(s int) bool { return offset(at+int64(s)) == after }))
		}
		if first := max(at, midnight-before); first < change {
			return first * 1000
		}
		if first := max(change, midnight-after); first < at+hour {
			return first * 1000
		}
	}
}
