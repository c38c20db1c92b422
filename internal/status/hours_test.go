package status

import (
	"slices"
	"testing"
	"time"
)

// Rejects are counted by the hour in which they were refused, and of many hours the newest are told.
func TestCountHours(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 10, 59, 59, 0, time.UTC)
	var picked []Rejected
	for i := range 40 { // of the hours 10, 9, 7, 6, 4 and so on
		picked = append(picked, Rejected{Time: at.Add(-1000 * time.Hour), refused: at.Add(-time.Duration(i+i/2) * time.Hour)})
	}
	picked = append([]Rejected{{refused: at}}, picked...)
	got := countHours(picked)
	if len(got) != mostHours || got[0] != (hourCount{at.Truncate(time.Hour), 2}) || got[2] != (hourCount{at.Truncate(time.Hour).Add(-3 * time.Hour), 1}) {
		t.Errorf("%+v", got)
	}
	if !slices.IsSortedFunc(got, func(a, b hourCount) int { return b.Hour.Compare(a.Hour) }) {
		t.Error("not the newest first")
	}
	if none := countHours(nil); none == nil || len(none) != 0 {
		t.Errorf("of none: %#v", none)
	}
}
