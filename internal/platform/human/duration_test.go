package human

import (
	"math"
	"testing"
	"time"
)

func TestDurationsAreReadable(t *testing.T) {
	for want, ds := range map[string][]time.Duration{
		"0 seconds":           {0},
		"less than 1 ms":      {1, 999 * time.Microsecond},
		"1 ms":                {time.Millisecond, 1499 * time.Microsecond},
		"250 ms":              {250 * time.Millisecond, -250 * time.Millisecond},
		"999 ms":              {999*time.Millisecond + 499*time.Microsecond},
		"1 second":            {999*time.Millisecond + 500*time.Microsecond, time.Second, 1049 * time.Millisecond},
		"1.5 seconds":         {1500 * time.Millisecond},
		"9.9 seconds":         {9949 * time.Millisecond},
		"10 seconds":          {9950 * time.Millisecond, 10 * time.Second, 10499 * time.Millisecond},
		"59 seconds":          {59 * time.Second},
		"1 minute":            {time.Minute - time.Second/2, time.Minute},
		"1 minute 1 second":   {61 * time.Second},
		"1 minute 30 seconds": {90 * time.Second},
		"1 hour":              {time.Hour - time.Second/2, time.Hour + 29*time.Second},
		"1 hour 1 minute":     {61 * time.Minute},
		"23 hours 59 minutes": {day - 31*time.Second},
		"1 day":               {day - 30*time.Second, day, day + 29*time.Minute},
		"1 day 1 hour":        {25 * time.Hour},
		"3 days":              {259170837 * time.Millisecond},
		"14 days":             {14 * day},
		"730 days":            {730 * day},
		"2 years":             {2 * year},
		"56 years":            {56 * year},
		"292 years":           {math.MaxInt64, math.MinInt64},
	} {
		for _, d := range ds {
			if got := Duration(d); got != want {
				t.Errorf("%v is %q, want %q", d, got, want)
			}
		}
	}
}

func TestMillisecondsAreReadable(t *testing.T) {
	for n, want := range map[int64]string{
		259170837:            "3 days",
		-1500:                "1.5 seconds",
		9_000_000_000_000:    "285 years",
		253_402_300_799_999:  "8030 years",
		-253_402_300_799_999: "8030 years",
		math.MinInt64:        "292271023 years",
	} {
		if got := Millis(n); got != want {
			t.Errorf("%d ms are %q, want %q", n, got, want)
		}
	}
}
