package window

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/cases"
)

func mustTiers(t testing.TB, s string) Tiers {
	t.Helper()
	tiers, err := ParseTiers(s)
	require.NoError(t, err)
	return tiers
}

// What is written in settings is read, or refused with the reason, and written in the shortest way.
func TestTiersAreParsed(t *testing.T) {
	t.Parallel()
	cases.Check(t, "tiers", func(_ *testing.T, section, given string) string {
		var out string
		var err error
		var tiers Tiers
		switch section {
		case "tiers":
			tiers, err = ParseTiers(given)
			out = tiers.String()
		case "unique tiers":
			tiers, err = ParseUniqueTiers(given)
			out = FormatUniqueTiers(tiers)
		}
		if err != nil {
			return "error: " + err.Error()
		}
		return out
	})
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
		require.Equal(t, tiers, mustTiers(t, tiers.String()))
		if slices.ContainsFunc(tiers, func(t Tier) bool { return t.CellsPerEpoch() > EpochCells || t.Window < t.Cell }) {
			t.Fatalf("%q: a tier of %s is out of bounds", s, tiers)
		}
	})
}

// A tier lacks hits if one of its windows, or of those that a declaration covers, begins before its cells are
// complete, and no coarser tier answers that window.
func TestTiersThatLackHits(t *testing.T) {
	t.Parallel()
	const hour, now = 3_600_000, 100 * 24 * 3_600_000
	tiers := mustTiers(t, "1m/1h,15m/1d,1d/30d")
	for _, c := range []struct {
		since [3]int64
		from  int64
		lack  string
	}{
		{[3]int64{}, 1, ""},
		{[3]int64{0, now - 12*hour, 0}, 1, ""},                   // days answer
		{[3]int64{0, now - 12*hour, now - 24*hour}, 1, "1d/30d"}, // and here from before the windows of 15m on
		{[3]int64{0, now - 12*hour, now - 12*hour}, 1, "15m/1d,1d/30d"},
		{[3]int64{0, now - 12*hour, now - 12*hour}, now - 12*hour, ""}, // older answers are not declared
		{[3]int64{0, now - 12*hour, now - 12*hour}, now - 13*hour, "15m/1d,1d/30d"},
		{[3]int64{0, 0, now - 31*24*hour}, 1, ""}, // it has passed
	} {
		for i := range tiers {
			tiers[i].Since = c.since[i]
		}
		if got := tiers.Lacking(c.from, now).String(); got != c.lack {
			t.Errorf("%v from %d: %q lack hits, want %q", c.since, c.from, got, c.lack)
		}
	}
}
