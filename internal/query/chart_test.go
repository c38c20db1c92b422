package query

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tallyroll/internal/window"
)

// aSeries has n points of a wave around a level.
func aSeries(n int, step time.Duration, level float64) window.Series {
	out := window.Series{Step: step, AsOf: fakeNow.UnixMilli(), Counts: make([]int64, n)}
	out.Range.To = out.AsOf
	out.Range.From = out.Range.To - int64(n)*step.Milliseconds()
	for i := range out.Counts {
		out.Counts[i] = int64(level * (1 + 0.8*math.Sin(float64(i)/5)))
	}
	return out
}

// Charts of all kinds are drawn and have the size asked for. CHARTS names a
// directory to look at them in.
func TestCharts(t *testing.T) {
	long := strings.Repeat("very-long-", 51)
	for _, c := range []struct {
		name  string
		keys  []string
		found []window.Series
	}{
		{"hour", []string{"/index.html"}, []window.Series{aSeries(60, time.Minute, 12_345)}},
		{"day", []string{"api-1", "api-2", long}, []window.Series{aSeries(96, 15*time.Minute, 1e6), aSeries(96, 15*time.Minute, 5e5), aSeries(96, 15*time.Minute, 2e5)}},
		{"no XML", []string{"a\ufffeb\uffffc \U0001fffe"}, []window.Series{aSeries(60, time.Minute, 5)}},
		{"month", []string{"größe <&>\""}, []window.Series{aSeries(120, 6*time.Hour, 3)}},
		{"minute", []string{"a"}, []window.Series{aSeries(60, time.Second, 40)}},
		{"nothing", []string{"a"}, []window.Series{aSeries(60, time.Minute, 0)}},
		{"one", []string{"a"}, []window.Series{aSeries(1, time.Minute, math.MaxInt64/2)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			image, err := seriesChart(c.keys, c.found, view{"png", 800, 300})
			if err != nil {
				t.Fatal(err)
			}
			if dir := os.Getenv("CHARTS"); dir != "" {
				if err := os.WriteFile(filepath.Join(dir, c.name+".png"), image, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			config, err := png.DecodeConfig(bytes.NewReader(image))
			if err != nil || config.Width != 800 || config.Height != 300 {
				t.Errorf("%dx%d, %v; want 800x300", config.Width, config.Height, err)
			}
			drawing, err := seriesChart(c.keys, c.found, view{"svg", 800, 300})
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			for d := xml.NewDecoder(bytes.NewReader(drawing)); ; {
				token, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("%v in %s", err, drawing)
				}
				if data, ok := token.(xml.CharData); ok {
					text.Write(data)
				}
			}
			for _, key := range c.keys {
				if !strings.Contains(text.String(), shortened(key)) {
					t.Errorf("the drawing does not name %s", shortened(key))
				}
			}
		})
	}
}

// A line begins where counting did and ends with the last finished step: it falls
// only where the hits did.
func TestLinesLeaveOutWhatIsNotCounted(t *testing.T) {
	series := func(since, asOf time.Duration) window.Series {
		s := aSeries(4, time.Minute, 0)
		s.Counts = []int64{0, 5, 6, 1}
		s.CountingSince, s.AsOf = s.Range.From+since.Milliseconds(), s.Range.From+asOf.Milliseconds()
		return s
	}
	for _, c := range []struct {
		name string
		of   window.Series
		want string
	}{
		{"all", series(-time.Hour, 4*time.Minute), "0:0 60:5 120:6 180:1 240:1"},
		{"the last step goes on", series(-time.Hour, 4*time.Minute-1), "0:0 60:5 120:6 180:6"},
		{"nobody counted at first", series(90*time.Second, 5*time.Minute), "60:5 120:6 180:1 240:1"},
		{"nothing yet", series(90*time.Second, time.Minute), ""},
		{"nothing known", series(-time.Hour, -time.Hour), ""},
		{"it began later", series(time.Hour, time.Hour), ""},
	} {
		var got []string
		for _, corner := range levels(c.of) {
			got = append(got, fmt.Sprintf("%.0f:%.0f", corner.X-seconds(c.of.Range.From), corner.Y))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q, want %q", c.name, s, c.want)
		}
		if _, err := seriesChart([]string{"a"}, []window.Series{c.of}, view{"svg", 400, 200}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 7: "7", 999: "999", 1000: "1,000", 1234567: "1,234,567", -123456: "-123,456", math.MaxInt64: "9,223,372,036,854,775,807"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestTimeTicks(t *testing.T) {
	for length, want := range map[time.Duration]string{
		time.Minute:         "09:59:00 09:59:10 09:59:20 09:59:30 09:59:40 09:59:50 10:00:00",
		time.Hour:           "09:00 09:10 09:20 09:30 09:40 09:50 10:00",
		24 * time.Hour:      "12:00 15:00 18:00 21:00 Nov 21 03:00 06:00 09:00",
		30 * 24 * time.Hour: "Oct 27 Nov 1 Nov 6 Nov 11 Nov 16 Nov 21",
	} {
		var got []string
		for _, tick := range (timeTicks{8}).Ticks(seconds(fakeNow.Add(-length).UnixMilli()), seconds(fakeNow.UnixMilli())) {
			got = append(got, tick.Label)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s; want %s", length, s, want)
		}
	}
}
