package calendar

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// drawnZones have days of 23 and 25 hours, midnights that do not exist or come twice, dates that were left
// out, offsets of quarters of an hour, and no changes at all.
var drawnZones = []string{
	"UTC", "Europe/Berlin", "Europe/London", "America/New_York", "America/St_Johns", "America/Sao_Paulo", "America/Asuncion", "America/Havana",
	"America/Santiago", "Asia/Beirut", "Asia/Gaza", "Africa/Cairo", "Asia/Tehran", "Asia/Kathmandu", "Asia/Kolkata", "Australia/Lord_Howe",
	"Pacific/Apia", "Pacific/Kiritimati", "Pacific/Chatham", "Atlantic/Azores", "Africa/Casablanca", "Etc/GMT+12", "Antarctica/Troll",
}

// drawMoment returns a zone and a moment (Unix milliseconds), half of them at or around a change of its
// clocks.
func drawMoment(t *testing.T, random *rand.Rand) (name string, zone *time.Location, at int64) {
	t.Helper()
	name = drawnZones[random.IntN(len(drawnZones))]
	zone, err := ParseZone(name)
	require.NoError(t, err)
	first := time.Date(1985, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	at = first + random.Int64N(time.Date(2060, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()-first)
	if _, change := time.UnixMilli(at).In(zone).ZoneBounds(); random.IntN(2) == 0 && !change.IsZero() {
		at = change.UnixMilli() + []int64{-1, 0, 1, random.Int64N(2*86_400_000) - 86_400_000}[random.IntN(4)]
	}
	return name, zone, at
}

// A calendar's window begins at a local midnight, or at the first moment of its date, and holds all of the
// date.
func TestCalendarWindowHoldsItsDate(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range stack.Rounds(1000, 20_000) {
		name, zone, now := drawMoment(t, random)
		in := func(milli int64) time.Time { return time.UnixMilli(milli).In(zone) }
		at := in(now - 1)
		for window, date := range map[string]time.Time{
			Today: at, Week: at.AddDate(0, 0, -(int(at.Weekday())+6)%7), Month: time.Date(at.Year(), at.Month(), 1, 12, 0, 0, 0, zone),
			Year: time.Date(at.Year(), time.January, 1, 12, 0, 0, 0, zone),
		} {
			r := Window{window, zone}.Range(now)
			if r.To != now || r.From >= now {
				t.Fatalf("%s in %s at %v: %+v", window, name, at, r)
			}
			checkFirst(t, window+" in "+name, in(r.From), date)
		}
		y := Window{Yesterday, zone}.Range(now)
		end := Window{Today, zone}.Range(now + 1).From
		if y.To != end || y.From >= y.To {
			t.Fatalf("yesterday in %s at %v: %v to %v, and today begins at %v", name, in(now), in(y.From), in(y.To), in(end))
		}
		if before := (Window{Today, zone}).Range(end); before.From != y.From {
			t.Fatalf("yesterday in %s at %v begins at %v, but the day that had then ended at %v", name, in(now), in(y.From), in(before.From))
		}
	}
}

// checkFirst checks that clocks show the date at a moment, or a later one if there is no such date, and an
// earlier date until then.
func checkFirst(t *testing.T, what string, from, date time.Time) {
	t.Helper()
	days := func(at time.Time) int64 {
		return time.Date(at.Year(), at.Month(), at.Day(), 0, 0, 0, 0, time.UTC).Unix() / 86_400
	}
	if days(from) < days(date) {
		t.Fatalf("%s begins at %v, before %v", what, from, date)
	}
	for back := time.Duration(0); back < 27*time.Hour; back += 15 * time.Minute { // no clock has changed by less since
		if before := from.Add(-time.Millisecond - back); days(before) >= days(date) {
			t.Fatalf("%s begins at %v, but %v belongs to it", what, from, before)
		}
	}
}

// Steps of a calendar follow each other without a gap, and each begins at the first moment of its date.
func TestCalendarStepsFollowWithoutGaps(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	for range stack.Rounds(50, 1000) {
		name, zone, at := drawMoment(t, random)
		in := func(milli int64) time.Time { return time.UnixMilli(milli).In(zone) }
		for _, step := range []string{"1d", "1w", "1mo", "1y"} {
			s, ok := ParseSteps(step, zone)
			if !ok {
				t.Fatalf("no steps of %s", step)
			}
			r := s.At(at)
			switch next := s.At(r.To); {
			case r.From > at || at >= r.To:
				t.Fatalf("%s in %s of %v: %v to %v", step, name, in(at), in(r.From), in(r.To))
			case s.At(r.From) != r || s.At(r.To-1) != r || next.From != r.To:
				t.Fatalf("%s in %s of %v: %v to %v; it begins in %+v, and %+v follows", step, name, in(at), in(r.From), in(r.To), s.At(r.From), next)
			}
			date := in(r.From)
			switch { // the date may be one that was left out
			case step == "1w" && date.Weekday() != time.Monday:
				date = date.AddDate(0, 0, -(int(date.Weekday())+6)%7)
			case step == "1mo":
				date = time.Date(date.Year(), date.Month(), 1, 12, 0, 0, 0, zone)
			case step == "1y":
				date = time.Date(date.Year(), time.January, 1, 12, 0, 0, 0, zone)
			}
			checkFirst(t, step+" in "+name, in(r.From), date)
		}
	}
	for _, text := range []string{"", "24h", "7d", "2d", "1M", "2y", "1month", "month", "1w2d"} {
		if s, ok := ParseSteps(text, time.UTC); ok {
			t.Errorf("%q is %v", text, s)
		}
	}
}

func TestOddDaysHaveTheirHours(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, window, now, from, to string }{
		{"Europe/Berlin", Today, "2026-03-29T21:59:59Z", "2026-03-28T23:00:00Z", ""},                         // 23 hours, all but a second
		{"Europe/Berlin", Yesterday, "2026-03-30T10:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"}, // 23 hours
		{"Europe/Berlin", Yesterday, "2026-10-26T10:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"}, // 25 hours
		{"Europe/Berlin", Week, "2026-10-26T10:00:00Z", "2026-10-25T23:00:00Z", ""},                          // a Monday
		{"Europe/Berlin", Week, "2026-11-01T10:00:00Z", "2026-10-25T23:00:00Z", ""},                          // a Sunday
		{"Europe/Berlin", Month, "2026-10-31T23:30:00Z", "2026-10-31T23:00:00Z", ""},                         // already November
		{"America/Sao_Paulo", Today, "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", ""},                     // begins at 01:00
		{"America/Sao_Paulo", Yesterday, "2018-11-05T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		{"America/Havana", Today, "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", ""},                       // midnight comes twice
		{"Pacific/Apia", Yesterday, "2011-12-31T00:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"}, // no 30th
		{"UTC", Today, "2026-11-21T00:00:00Z", "2026-11-20T00:00:00Z", ""},                                  // nothing of the 21st has passed
		{"UTC", Yesterday, "2026-11-21T00:00:00Z", "2026-11-20T00:00:00Z", "2026-11-21T00:00:00Z"},
		{"UTC", Month, "2026-12-01T00:00:00Z", "2026-11-01T00:00:00Z", ""},
		{"UTC", Year, "2026-11-21T10:00:00Z", "2026-01-01T00:00:00Z", ""},
		{"UTC", Year, "2027-01-01T00:00:00Z", "2026-01-01T00:00:00Z", ""}, // nothing of 2027 has passed
		{"Pacific/Kiritimati", Year, "2026-12-31T10:00:01Z", "2026-12-31T10:00:00Z", ""},
		{"Europe/Berlin", Year, "2026-07-01T10:00:00Z", "2025-12-31T23:00:00Z", ""},
	} {
		zone, err := ParseZone(c.zone)
		require.NoError(t, err)
		if c.to == "" {
			c.to = c.now
		}
		now, err := time.Parse(time.RFC3339, c.now)
		require.NoError(t, err)
		r := Window{c.window, zone}.Range(now.UnixMilli())
		from, to := time.UnixMilli(r.From).UTC().Format(time.RFC3339), time.UnixMilli(r.To).UTC().Format(time.RFC3339)
		if from != c.from || to != c.to {
			t.Errorf("%s in %s at %s: %s to %s, want %s to %s", c.window, c.zone, c.now, from, to, c.from, c.to)
		}
	}
}
