package window

import (
	"fmt"
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
func TestDurationsAndTiersAreParsed(t *testing.T) {
	t.Parallel()
	cases.Check(t, "tiers", func(_ *testing.T, section, given string) string {
		var out string
		var err error
		var tiers Tiers
		switch section {
		case "durations":
			d, failed := ParseDuration(given)
			out, err = fmt.Sprintf("%v, written as %s", d, FormatDuration(d)), failed
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
