package worker

import (
	"context"
	"time"
)

// A stopped worker ends within ten seconds, even if a step hangs. The steps in order, with their bounds:
//
//  1. Each session stops reading and commits what is in memory: consume.LastCommitWithin. Messages that are
//     not committed by then stay in the stream, and the session logs where they begin.
//  2. It deletes its consumer, which would also expire: source.ReleaseWithin.
//  3. The worker leaves the fleet, whose key would also expire: leaveWithin.
//  4. The connections are closed and the status server ends: the rest of stopWithin. A step that has not
//     returned by then is abandoned.
//
// The exit code is 0 even if the last commit failed, because the next worker reads those messages again.
const (
	leaveWithin = time.Second
	stopWithin  = 9500 * time.Millisecond
)

// awaitEnd waits until the work has ended, for at most stopWithin after ctx. late: it has not.
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
