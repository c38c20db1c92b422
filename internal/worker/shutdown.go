package worker

import (
	"context"
	"time"
)

// A worker that is told to stop ends within ten seconds, whatever hangs. These are the steps
// in order, and how long each may take:
//
//  1. Each session stops reading and commits what is in memory: consume.LastCommitWithin. What is not
//     committed by then stays in the stream, and the log says where it begins.
//  2. It deletes its consumer, which would expire by itself: source.ReleaseWithin.
//  3. The worker leaves the fleet; its key would expire, too: leaveWithin.
//  4. The connections are closed and the status server ends: what is left of stopWithin.
//     A step that has not come back by then is left behind.
//
// The exit code is 0 even if the last commit failed. Nothing is lost then: the next
// worker reads those messages again.
const (
	leaveWithin = time.Second
	stopWithin  = 9500 * time.Millisecond
)

// awaitEnd waits until the work has ended. Once ctx has ended, it waits for at most
// stopWithin, and reports whether that was too short.
func awaitEnd(ctx context.Context, ended <-chan error) (err error, late bool) {
	select {
	case err := <-ended:
		return err, false
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err, false
	case <-time.After(stopWithin):
		return nil, true
	}
}
