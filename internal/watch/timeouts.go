package watch

import (
	"math/rand/v2"
	"time"
)

// timeouts holds the process's timeouts. Tests shorten them.
type timeouts struct {
	// lease is how long the leader may be silent before another process takes over.
	lease time.Duration
	// outage is how long no process must have reached Redis before states are unknown.
	outage time.Duration
	// orphanGrace is how long a process must have led before it ends states of rules that its file lacks: the
	// previous leader may have had another file, which is just being rolled out.
	orphanGrace time.Duration
	// retryMin and retryMax bound the pause after a failed attempt. It grows with the age of the change.
	retryMin, retryMax time.Duration
	// refusal is how long a target may refuse a change itself before the change is given up.
	refusal time.Duration
	// silence is how long a target may not answer a process before another process tries.
	silence time.Duration
}

// newTimeouts returns the timeouts for an evaluation interval. outage is as long as as_of may usually lag.
func newTimeouts(interval time.Duration) timeouts {
	return timeouts{
		lease: max(3*interval, 3*time.Second), outage: max(5*interval, 5*time.Second), orphanGrace: time.Minute,
		retryMin: time.Second, retryMax: time.Minute, refusal: 5 * time.Minute, silence: 15 * time.Second,
	}
}

const (
	publishTimeout = 5 * time.Second
	queryTimeout   = 4 * time.Second
)

// retryPause is the pause before a retry: half of age, within bounds. Jitter spreads simultaneous failures.
func (t timeouts) retryPause(age time.Duration) time.Duration {
	pause := min(max(age/2, t.retryMin), t.retryMax)
	return pause*4/5 + rand.N(pause/5)
}
