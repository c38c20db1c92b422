package worker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tallyroll/internal/consume"
	"tallyroll/internal/source"
)

func TestTheStepsOfAStopFitIntoItsTime(t *testing.T) {
	t.Parallel()
	const promised = 10 * time.Second
	if sum := consume.LastCommitWithin + source.ReleaseWithin + leaveWithin; sum >= stopWithin || stopWithin >= promised {
		t.Errorf("the steps take %s, all of it %s, and %s are promised", sum, stopWithin, promised)
	}
}

func TestAwaitEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, func() { ended <- failed })
		if err, late := awaitEnd(ctx, ended); err != failed || late {
			t.Errorf("a worker that ends by itself: %v, late %v", err, late)
		}
		time.AfterFunc(time.Hour, cancel)
		time.AfterFunc(time.Hour+stopWithin-time.Millisecond, func() { ended <- nil })
		if err, late := awaitEnd(ctx, ended); err != nil || late {
			t.Errorf("one that stops in time: %v, late %v", err, late)
		}
		began := time.Now()
		if err, late := awaitEnd(ctx, ended); err != nil || !late || time.Since(began) != stopWithin {
			t.Errorf("one that hangs: %v, late %v, after %s", err, late, time.Since(began))
		}
	})
}
