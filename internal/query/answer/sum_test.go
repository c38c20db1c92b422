package answer

import (
	"math"
	"testing"

	"tallyroll/internal/window"
)

func TestSumStopsAtTheLargestNumber(t *testing.T) {
	t.Parallel()
	g := SumGroup{}
	g.Add(window.Estimate{Total: math.MaxInt64, Upper: math.MaxInt64})
	g.Add(window.Estimate{Total: 1, Upper: math.MaxInt64})
	if g.Total != math.MaxInt64 || g.Upper != math.MaxInt64 {
		t.Errorf("%+v", g)
	}
}
