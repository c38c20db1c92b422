package hit

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTimesAreParsedOrRefused(t *testing.T) {
	for text, want := range map[string]int64{
		"1970-01-01T00:00:00Z": 0, "1970-01-01T00:00:00.001Z": 1, "1969-12-31T23:59:59.9999Z": -1, "1970-01-01T00:00:00.0019999999999Z": 1,
		"1970-01-01T01:30:00+01:30": 0, "1969-12-31T23:00:00-01:00": 0, "1970-01-01T00:00:00-00:00": 0, "1972-02-29T00:00:00Z": 68169600000,
		"1970-01-01t00:00:00z": 0, "1970-01-01t00:00:00.5-23:59": 86340500, "1970-01-01T23:59:00+23:59": 0,
		"1972-06-30T23:59:60Z": 78796800000, "1972-06-30t23:59:60.25z": 78796800250, "1972-07-01T00:29:60+00:30": 78796800000, "2016-12-31T15:59:60-08:00": 1483228800000,
		"0001-01-01T00:00:00Z": MinTime, "9999-12-31T23:59:59.999999Z": MaxTime,
		"0001-01-01T00:00:00+00:01": MinTime - 60_000, "9999-12-31T23:59:59.999-00:01": MaxTime + 60_000, "0000-01-01T00:00:00Z": -62167219200000,
	} {
		got, err := ParseTime(text)
		if err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
		if inRange := want >= -62135596800000 && want <= 253402300799999; errors.Is(CheckTime(got), ErrTimeRange) == inRange {
			t.Errorf("%s: CheckTime says %v", text, CheckTime(got))
		}
	}
	for _, text := range []string{
		"", "now", "0", "1970-01-01", "1970-01-01T00:00Z", "1970-01-01T00:00:00", "1970-01-01 00:00:00Z",
		"1970-01-01T00:00:00.Z", "1970-01-01T00:00:00.+01:00", "1970-01-01T00:00:00.5", "1970-01-01T00:00:00,5Z", "1970-01-01T00:00:00+0:00", "1970-01-01T0:00:00Z", "1970-01-01T000:00:00Z", "1970-01-01T00:00:00ZZ", "1970-01-01T00:00:00+01:00Z", "１970-01-01T00:00:00Z", "1970-01-01T00:00:00+0100", "1970-01-01T00:00:00+01", " 1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z ", "70-01-01T00:00:00Z", "11970-01-01T00:00:00Z", "-1970-01-01T00:00:00Z",
		"1972-06-29T23:59:60Z", "1972-06-30T23:58:60Z", "1972-06-30T22:59:60Z", "1972-06-30T23:59:60+01:00", "1972-06-30T23:59:61Z", "1970-01-01T24:00:00Z", "1970-13-01T00:00:00Z", "1970-00-01T00:00:00Z", "1970-02-29T00:00:00Z", "1970-01-00T00:00:00Z", "1970-01-01T00:60:00Z", "1970-01-01T00:00:00+24:00", "1970-01-02T00:00:00-24:00", "1970-01-01T00:00:00+01:60", "1970-01-01T00:00:00+25:00", "1970-01-01T00:00:00*01:00", "1970-01-01T00:00:00+01-00", "1970-04-31T00:00:00Z", "1900-02-29T00:00:00Z",
	} {
		if got, err := ParseTime(text); err == nil {
			t.Errorf("%q is taken for %d", text, got)
		}
	}
}

// Where the grammar of the RFC and time.Parse agree, so must ParseRFC3339, to the nanosecond; and it takes
// nothing else, other than leap seconds.
func TestTimesAreThoseOfTheGrammar(t *testing.T) {
	grammar := regexp.MustCompile(`^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$`)
	rapid.Check(t, func(t *rapid.T) {
		zone := time.FixedZone("", 60*rapid.IntRange(-1439, 1439).Draw(t, "zone"))
		at := time.Unix(rapid.Int64Range(MinTime/1000, MaxTime/1000).Draw(t, "second"), rapid.Int64Range(0, 999_999_999).Draw(t, "nano"))
		text := at.In(zone).Format(time.RFC3339Nano)
		if rapid.Bool().Draw(t, "small") {
			text = strings.ToLower(text)
		}
		if rapid.Bool().Draw(t, "mutated") {
			i := rapid.IntRange(0, len(text)-1).Draw(t, "place")
			with := rapid.SampledFrom([]string{"", "0", "1", "2", "3", "5", "6", "9", ":", "-", "+", ".", ",", " ", "T", "Z", "00", "é"}).Draw(t, "with")
			text = text[:i] + with + text[i+rapid.IntRange(0, 1).Draw(t, "length"):]
		}
		got, err := ParseRFC3339(text)
		want, wantErr := time.Parse(time.RFC3339Nano, strings.ToUpper(text))
		if is := wantErr == nil && grammar.MatchString(text); is != (err == nil) && !strings.Contains(text, ":60") || is && !got.Equal(want) {
			t.Fatalf("%s: %v, %v; want %v, %v", text, got, err, want, wantErr)
		}
	})
}
