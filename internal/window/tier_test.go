package window

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func mustTiers(t testing.TB, s string) Tiers {
	t.Helper()
	tiers, err := ParseTiers(s)
	require.NoError(t, err)
	return tiers
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{
		"1s": time.Second, "90s": 90 * time.Second, "15m": 15 * time.Minute, "24h": 24 * time.Hour,
		"7d": 7 * 24 * time.Hour, "1w": 7 * 24 * time.Hour, "520w": 520 * 7 * 24 * time.Hour,
	} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "s", "0s", "-1s", "+1s", "1", "1.5h", "1ms", "1h30m", "1H", " 1h", "4000d", "99999999999w"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v; want an error", in, got)
		}
	}
}

func TestFormatDurationIsShortest(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"1s": time.Second, "90s": 90 * time.Second, "1m": 60 * time.Second, "6h": 6 * time.Hour, "1d": 24 * time.Hour, "14d": 14 * 24 * time.Hour,
	} {
		if got := FormatDuration(d); got != want {
			t.Errorf("FormatDuration(%v) = %q; want %q", d, got, want)
		}
	}
}

func TestParseTiers(t *testing.T) {
	t.Parallel()
	if got := mustTiers(t, " 1s/1m, 60s/1h,15m/24h,1h/32d").String(); got != DefaultTiers {
		t.Errorf("tiers are %q; want %q", got, DefaultTiers)
	}
	for in, want := range map[string]string{
		"":             "write a cell and a window",
		"1m":           "write a cell and a window",
		"1x/1m":        "is not a duration",
		"1s/1m,":       "write a cell and a window",
		"7s/1m":        "whole number of cells",
		"1m/1h,1s/1m":  "from fine to coarse",
		"1s/1m,2s/1m":  "from fine to coarse",
		"1m/1h,60s/2h": "from fine to coarse",
		"1s/1w,1m/2M":  "is not a duration",
		"1d/11y":       "longer than ten years",
		"1s/13d":       "at most 1048576 are allowed",
		"1h/1m":        "whole number of cells",
		"1s/1s,2s/2s,3s/3s,4s/4s,5s/5s,6s/6s,7s/7s,8s/8s,9s/9s": "at most 8",
	} {
		_, err := ParseTiers(in)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseTiers(%q): %v; want an error with %q", in, err, want)
		}
	}
	if got := mustTiers(t, "1s/1h,1m/1d,1h/92d").String(); got != "1s/1h,1m/1d,1h/92d" {
		t.Errorf("tiers of many cells are %q", got)
	}
}

func FuzzParseTiers(f *testing.F) {
	for _, s := range []string{DefaultTiers, "1s/1m", "1s/5m,", "9999999d/1w", "1s/1s,2s/2s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tiers, err := ParseTiers(s)
		if err != nil {
			return
		}
		again, err := ParseTiers(tiers.String())
		if err != nil || again.String() != tiers.String() {
			t.Fatalf("%q is read as %s, which is read as %s, %v", s, tiers, again, err)
		}
		for _, tier := range tiers {
			if tier.cellsPerEpoch() > EpochCells || tier.Window < tier.Cell {
				t.Fatalf("%q: tier %s is out of bounds", s, tier)
			}
		}
	})
}
