package answer

import (
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"
	_ "time/tzdata" // the zones, if the machine has none

	"tallyroll/internal/web"
	"tallyroll/internal/window"
)

const (
	today     = "today"
	yesterday = "yesterday"
	thisWeek  = "week"
	thisMonth = "month"
	thisYear  = "year"

	calendarHint = "today, yesterday, week, month or year"
	stepHint     = "1d, 1w, 1mo or 1y"
	zoneHint     = "a name of the IANA time zones, such as Europe/Berlin or UTC"
)

type calendar struct {
	name string
	zone *time.Location
}

// Range returns the window for a moment (Unix milliseconds). It is never empty: at midnight itself, today is
// the whole day that has just ended. So are week, month and year.
func (c calendar) Range(now int64) window.Range {
	if c.name == yesterday {
		end := firstMoment(dateIn(c.zone, now), c.zone)
		return window.Range{From: firstMoment(dateIn(c.zone, end-1), c.zone), To: end}
	}
	date := dateIn(c.zone, now-1) // the last that the window includes
	switch c.name {
	case thisWeek:
		date = mondayOf(date)
	case thisMonth:
		date = firstOf(date)
	case thisYear:
		date = newYearOf(date)
	}
	return window.Range{From: firstMoment(date, c.zone), To: now}
}

// calendarSteps are the days, weeks (from Monday), months or years of a zone: 1d, 1w, 1mo, 1y.
type calendarSteps struct {
	name string
	zone *time.Location
}

func parseSteps(text string, zone *time.Location) (steps calendarSteps, ok bool) {
	return calendarSteps{text, zone}, slices.Contains([]string{"1d", "1w", "1mo", "1y"}, text)
}

func (s calendarSteps) String() string { return s.name }

func isCalendar(text string) bool {
	return slices.Contains([]string{today, yesterday, thisWeek, thisMonth, thisYear}, text)
}

// zoneName excludes other files in a folder of zones, such as copies with leap seconds (right/…).
var zoneName = regexp.MustCompile(`^[A-Z][A-Za-z0-9_+-]{0,31}(/[A-Za-z0-9_+-]{1,32}){0,3}$`)

func parseZone(text string) (*time.Location, error) {
	if text == "" {
		return time.UTC, nil
	}
	name := strings.ReplaceAll(text, " ", "+") // a query string turns the + of Etc/GMT+5 into a space
	if !zoneName.MatchString(name) || name == "Local" {
		return nil, web.BadInput("tz", "%s is not a time zone: must be %s", web.Excerpt(text), zoneHint)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, web.BadInput("tz", "no time zone is named %s: must be %s", web.Excerpt(text), zoneHint)
	}
	return zone, nil
}

// At returns the step that holds a moment (Unix milliseconds).
func (s calendarSteps) At(milli int64) window.Range {
	switch s.name {
	case "1w":
		monday := mondayOf(dateIn(s.zone, milli))
		return s.between(milli, monday, monday.AddDate(0, 0, 7))
	case "1mo":
		first := firstOf(dateIn(s.zone, milli))
		return s.between(milli, first, first.AddDate(0, 1, 0))
	case "1y":
		first := newYearOf(dateIn(s.zone, milli))
		return s.between(milli, first, first.AddDate(1, 0, 0))
	}
	date := dateIn(s.zone, milli)
	return s.between(milli, date, date.AddDate(0, 0, 1))
}

// between returns the time from the first moment of one date to that of another. If a change of the clocks
// repeats some of a date, the repeated part belongs to the next date, which had begun.
func (s calendarSteps) between(milli int64, first, next time.Time) window.Range {
	end := firstMoment(next, s.zone)
	if end > milli {
		return window.Range{From: firstMoment(first, s.zone), To: end}
	}
	return s.At(end)
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

// firstMoment returns the first moment (Unix milliseconds) at which a zone's clocks show the date or a later
// one. If midnight does not exist, or comes twice, time.Date does not specify which moment it returns.
func firstMoment(date time.Time, zone *time.Location) int64 {
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

// Time returns a moment in the form that answers have.
func Time(milli int64) time.Time { return time.UnixMilli(milli).UTC() }

// Since is when counting began, or the zero time, which answers omit, if that is unknown.
func Since(milli int64) time.Time {
	if milli == 0 {
		return time.Time{}
	}
	return Time(milli)
}

var SinceExample = time.Date(2026, 10, 1, 8, 0, 0, 0, time.UTC)

// SecondsSince is never negative, because clocks are estimates.
func SecondsSince(then, now int64) float64 { return float64(max(0, now-then)) / 1000 }
