package hit

import (
	"errors"
	"time"
)

// The years 1 to 9999, which RFC 3339 can write, in Unix milliseconds.
const MinTime, MaxTime = -62135596800000, 253402300799999

// ErrTimeRange says that a time is before MinTime or after MaxTime.
var ErrTimeRange = errors.New("the time is outside the years 1 to 9999")

// CheckTime returns ErrTimeRange if no hit can have this time, in Unix milliseconds.
func CheckTime(at int64) error {
	if at < MinTime || at > MaxTime {
		return ErrTimeRange
	}
	return nil
}

// ParseTime reads an RFC 3339 time as Unix milliseconds, rounded down. It accepts what
// time.Parse accepts for time.RFC3339. Unlike the RFC, that excludes a small t or z and leap
// seconds, and includes an hour of one digit, a comma before the fraction, and offsets up
// to 24:60. The time may lie in the year 0 or, because of its offset, in the year
// 10000: CheckTime refuses that.
func ParseTime(text string) (at int64, err error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0, err
	}
	return t.UnixMilli(), nil
}

// Moment writes Unix milliseconds as an RFC 3339 time, for people.
func Moment(at int64) string { return time.UnixMilli(at).UTC().Format("2006-01-02T15:04:05.999Z07:00") }
