package chart

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCountTicks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		top  int64
		most int
		want string
	}{
		{0, 5, "[0 1]"}, {1, 5, "[0 1]"}, {2, 5, "[0 1 2]"}, {3, 2, "[0 2 4]"}, {5, 5, "[0 1 2 3 4 5]"}, {6, 5, "[0 2 4 6]"},
		{11, 5, "[0 5 10 15]"}, {26, 5, "[0 10 20 30]"}, {101, 5, "[0 50 100 150]"}, {22_221, 6, "[0 5000 10000 15000 20000 25000]"},
		{1000, 1, "[0 1000]"}, {1001, 1, "[0 2000]"}, {7, 0, "[0 10]"}, {7, -1, "[0 10]"}, {-4, 3, "[0 1]"},
		{math.MaxInt64, 1, "[0 10000000000000000000]"}, {math.MaxInt64, 2, "[0 5000000000000000000 10000000000000000000]"},
	} {
		if got := fmt.Sprint(hitTicks(c.top, c.most)); got != c.want {
			t.Errorf("up to %d, at most %d: %s, want %s", c.top, c.most, got, c.want)
		}
	}
}

// Ticks hold the largest number, and are as many as may be or far fewer by a factor of at most 2.5.
func TestCountTicksHoldTheTop(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		top, most := rapid.Int64Range(1, math.MaxInt64).Draw(t, "top"), rapid.IntRange(1, 40).Draw(t, "most")
		ticks := hitTicks(top, most)
		n := len(ticks) - 1
		if n < 1 || n > most || ticks[n] < uint64(top) || ticks[n-1] >= uint64(top) {
			t.Fatalf("%v", ticks)
		}
		if step := ticks[1]; strings.Trim(fmt.Sprint(step), "0") != "1" && strings.Trim(fmt.Sprint(step), "0") != "2" && strings.Trim(fmt.Sprint(step), "0") != "5" {
			t.Fatalf("step %d", step)
		}
		if step := ticks[1]; step > 1 && float64(top)/(float64(step)/2.5) <= float64(most)-1 {
			t.Fatalf("a step of %d for %d, at most %d", step, top, most)
		}
	})
}

func TestGrouped(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{0: "0", 7: "7", 999: "999", 1000: "1,000", 1234567: "1,234,567", 1e19: "10,000,000,000,000,000,000"} {
		if got := withCommas(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestPrefixed(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{0: "0", 7: "7", 999: "999", 1000: "1k", 1500: "1.5k", 20_000: "20k", 1_050_000: "1.05M", 5e8: "500M", 2e9: "2G", 1e19: "10E"} {
		if got := withPrefix(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestTimeTicks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		length time.Duration
		pixels float64
		want   string
	}{
		{time.Minute, 700, "09:59:00 09:59:10 09:59:20 09:59:30 09:59:40 09:59:50 10:00:00"},
		{time.Hour, 700, "09:00 09:10 09:20 09:30 09:40 09:50 10:00"},
		{time.Hour, 330, "09:00 09:15 09:30 09:45 10:00"},
		{24 * time.Hour, 700, "12:00 15:00 18:00 21:00 Nov 21 03:00 06:00 09:00"},
		{30 * 24 * time.Hour, 700, "Oct 27 Nov 1 Nov 6 Nov 11 Nov 16 Nov 21"},
		{300 * 24 * time.Hour, 900, "Feb Mar Apr May Jun Jul Aug Sep Oct Nov"},
		{3 * 365 * 24 * time.Hour, 500, "2024 Jul 2025 Jul 2026 Jul"},
		{20 * 365 * 24 * time.Hour, 400, "2010 2015 2020 2025"},
		{999 * time.Millisecond, 100, "10:00:00"},
	} {
		var got []string
		for _, tick := range timeTicks(fakeNow.Add(-c.length).UnixMilli(), fakeNow.UnixMilli(), c.pixels, time.UTC) {
			got = append(got, tick.label)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s on %v pixels: %s; want %s", c.length, c.pixels, s, c.want)
		}
	}
}

// In a zone, ticks stand where its clocks show round times, before a change and after it.
func TestTimeTicksOfZones(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, from, to, want string }{
		{"Europe/Berlin", "2026-10-23T10:00:00Z", "2026-10-27T10:00:00Z", "Oct 24 @22:00 Oct 25 @22:00 Oct 26 @23:00 Oct 27 @23:00"},
		{"Asia/Kolkata", "2026-11-20T10:00:00Z", "2026-11-21T10:00:00Z", "18:00 @12:30 Nov 21 @18:30 06:00 @00:30 12:00 @06:30"},
		{"Australia/Lord_Howe", "2026-10-02T12:00:00Z", "2026-10-05T12:00:00Z", "Oct 3 @13:30 Oct 4 @13:30 Oct 5 @13:00"},
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		var ends [2]int64
		for i, text := range []string{c.from, c.to} {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				t.Fatal(err)
			}
			ends[i] = at.UnixMilli()
		}
		var got []string
		for _, tick := range timeTicks(ends[0], ends[1], 330, zone) {
			got = append(got, tick.label+" @"+time.UnixMilli(tick.at).UTC().Format("15:04"))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s; want %s", c.zone, s, c.want)
		}
	}
}
