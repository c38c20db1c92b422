package limitapi

import (
	"testing"
	"time"
)

func TestSecondsAreRoundedUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]float64{
		0: 0, time.Nanosecond: 0.001, time.Millisecond: 0.001, 1500*time.Millisecond + 1: 1.501, time.Hour: 3600,
	} {
		if got := ceilSeconds(d); got != want {
			t.Errorf("%v: %v, want %v", d, got, want)
		}
	}
}
