package hit

import (
	"errors"
	"time"
)

var errNotRFC3339 = errors.New("not an RFC 3339 time, such as 2026-11-21T10:00:00Z")

// ParseTime reads an RFC 3339 time as Unix milliseconds, rounded down. CheckTime refuses its years 0 and, due
// to the offset, 10000.
func ParseTime(text string) (at int64, err error) {
	t, err := ParseRFC3339(text)
	if err != nil {
		return 0, err
	}
	return t.UnixMilli(), nil
}

// ParseRFC3339 reads an RFC 3339 time, of whose fraction it keeps nanoseconds. As in the RFC, t and z may be
// small, an offset is at most 23:59, and second 60 is only at the end of a month of UTC. As in Unix time, it
// is the second that follows. time.Parse(time.RFC3339, …) differs in all of these, and takes an hour of one
// digit and a comma before the fraction.
func ParseRFC3339(text string) (time.Time, error) {
	const clock = len("2006-01-02T15:04:05")
	if len(text) <= clock ||
		text[4] != '-' || text[7] != '-' || text[10]|0x20 != 't' || text[13] != ':' || text[16] != ':' {
		return time.Time{}, errNotRFC3339
	}
	century, year := twoDigits(text[0:]), twoDigits(text[2:])
	month, day := time.Month(twoDigits(text[5:])), twoDigits(text[8:])
	hour, minute, second := twoDigits(text[11:]), twoDigits(text[14:]), twoDigits(text[17:])
	nano, zone := 0, text[clock:]
	if zone[0] == '.' {
		zone = zone[1:]
		digits := len(zone)
		for unit := 100_000_000; len(zone) > 0 && '0' <= zone[0] && zone[0] <= '9'; unit /= 10 {
			nano += unit * int(zone[0]-'0')
			zone = zone[1:]
		}
		if len(zone) == digits {
			return time.Time{}, errNotRFC3339
		}
	}
	offset := 0 // in minutes
	switch {
	case zone == "Z" || zone == "z":
	case len(zone) == len("+01:00") && (zone[0] == '+' || zone[0] == '-') && zone[3] == ':':
		h, m := twoDigits(zone[1:]), twoDigits(zone[4:])
		if h > 23 || m > 59 {
			return time.Time{}, errNotRFC3339
		}
		if offset = 60*h + m; zone[0] == '-' {
			offset = -offset
		}
	default:
		return time.Time{}, errNotRFC3339
	}
	t := time.Date(100*century+year, month, day, hour, minute-offset, second, nano, time.UTC)
	switch {
	case century > 99 || year > 99 || month < 1 || month > 12 || day < 1 || hour > 23 || minute > 59 || second > 60:
		return time.Time{}, errNotRFC3339
	case day > 28 && time.Date(100*century+year, month, day, 0, 0, 0, 0, time.UTC).Day() != day:
		return time.Time{}, errNotRFC3339
	case second == 60 && (t.Day() != 1 || t.Hour() != 0 || t.Minute() != 0):
		return time.Time{}, errNotRFC3339
	}
	return t, nil
}

// twoDigits returns the number that s begins with, or 100.
func twoDigits(s string) int {
	tens, ones := s[0]-'0', s[1]-'0'
	if tens > 9 || ones > 9 {
		return 100
	}
	return 10*int(tens) + int(ones)
}
