package boot

import (
	"math"
	"strings"
	"testing"
)

var ofBacklog = Words{Items: "messages", End: "caught up"}

func TestProgressLine(t *testing.T) {
	under := Progress{Done: 1_000_000, Left: 1_234_567, PerSecond: 250_000.4, Gained: 20_000}
	for name, test := range map[string]struct {
		p       Progress
		columns int
		want    string
	}{
		"as wide as the terminal":  {under, 100, "[#################.....................] 44 %  1,234,567 messages left  250,000/s  caught up in 1m2s"},
		"80 columns":               {under, 79, "[#######..........] 44 %  1,234,567 messages left  250,000/s  caught up in 1m2s"},
		"no rate":                  {under, 70, "[########...........] 44 %  1,234,567 messages left  caught up in 1m2s"},
		"no number either":         {under, 50, "[##########..............] 44 %  caught up in 1m2s"},
		"bar and percent":          {under, 30, "[##########.............] 44 %"},
		"percent":                  {under, 12, "44 %"},
		"nothing fits":             {under, 3, ""},
		"no terminal is as narrow": {under, -1, ""},
		"never":                    {Progress{Done: 1, Left: 99, PerSecond: 5, Gained: -3}, 79, "[...................]  1 %  99 messages left  5/s  never caught up at this rate"},
		"almost never":             {Progress{Left: math.MaxUint32, Gained: 1e-9}, 60, "[.......................]  0 %  never caught up at this rate"},
		"open":                     {Progress{Done: 12_345, Open: true, PerSecond: 50}, 40, "12,345 messages  50/s"},
		"open and narrow":          {Progress{Done: 12_345, Open: true, PerSecond: 50}, 10, "12,345"},
		"almost done":              {Progress{Done: 999_999, Left: 1, PerSecond: 1000, Gained: 1000}, 40, "[###############.] 99 %  caught up in 0s"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.p.line(test.columns, ofBacklog); got != test.want {
				t.Errorf("\n%q; want\n%q", got, test.want)
			}
		})
	}
	for columns := range 200 {
		got := under.line(columns, ofBacklog)
		if bar := strings.HasPrefix(got, "["); len(got) > columns || bar && len(got) < columns {
			t.Errorf("of %d columns, %d are taken: %q", columns, len(got), got)
		}
	}
}
