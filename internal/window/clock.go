package window

import (
	"sync"
	"time"
)

// What time it is, is for Redis to say: its keys expire by its clock. But the
// hashes that a question reads have to be chosen before it is sent. So a Reader
// plans with an estimate of Redis's clock, reads TIME behind the hashes in the same
// round trip, and plans again if the estimate was wrong. The estimate is the
// latest TIME and what a local clock that nobody sets (the monotonic one) has
// counted since; so a second round trip happens only after Redis's clock was set,
// its server was replaced, or this machine has slept.

const (
	// clockTolerance is how far an estimate may be off, beside what is not known of
	// the round trip that it is from: when in it TIME was read.
	clockTolerance = 500 * time.Millisecond
	// sampleMemory is how long a quick round trip tells more than a later slow one.
	sampleMemory = 10 * time.Second
	// clockMemory is how long a server of a cluster counts that was not asked again.
	clockMemory = time.Minute
)

// serverTimes are what the clocks of servers say, by address (of a single server: empty).
type serverTimes map[string]time.Time

// latest is the most advanced of the clocks.
func (t serverTimes) latest() (out time.Time) {
	for _, at := range t {
		if at.After(out) {
			out = at
		}
	}
	return out
}

// clocks are estimates of the clocks of all servers that were asked lately. On
// a cluster now is the latest of them: by that one no hash that a plan needs has
// expired on any server, and which servers a question goes to does not move it.
type clocks struct {
	mu      sync.Mutex
	servers map[string]clockSample
}

// clockSample is what a server's clock said when the local one said local, give
// or take doubt.
type clockSample struct {
	said, local time.Time
	doubt       time.Duration
}

func (s clockSample) at(local time.Time) time.Time { return s.said.Add(local.Sub(s.local)) }

// instant is a moment that questions are planned for.
type instant struct {
	milli int64         // by Redis's clock, Unix milliseconds
	doubt time.Duration // of it
	local time.Time     // by the local one
}

// now is the moment by the latest clock; false if none is known.
func (c *clocks) now(local time.Time) (instant, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var latest time.Time
	var doubt time.Duration
	for address, s := range c.servers {
		if local.Sub(s.local) > clockMemory && len(c.servers) > 1 {
			delete(c.servers, address)
			continue
		}
		if at := s.at(local); at.After(latest) {
			latest, doubt = at, s.doubt
		}
	}
	return instant{latest.UnixMilli(), doubt, local}, !latest.IsZero()
}

// learn takes what the servers said in a round trip that was sent and received
// at these local moments. It reports whether what was planned for an instant
// holds: no clock was elsewhere than was thought, and none has gone on for more
// than grace (of the hashes that were read) since the instant.
func (c *clocks) learn(planned instant, sent, received time.Time, times serverTimes, grace time.Duration) (holds bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	holds = true
	elapsed := received.Sub(planned.local)
	half := received.Sub(sent) / 2
	for address, said := range times {
		new := clockSample{said, sent.Add(half), half}
		before, known := c.servers[address]
		late := said.Sub(time.UnixMilli(planned.milli))
		wrong := late > elapsed+planned.doubt+clockTolerance ||
			known && before.at(received).Sub(said) > 2*half+before.doubt+clockTolerance
		if wrong || late > grace {
			holds = false
		}
		if wrong || !known || new.doubt <= before.doubt || new.local.Sub(before.local) > sampleMemory {
			if c.servers == nil {
				c.servers = make(map[string]clockSample)
			}
			c.servers[address] = new
		}
	}
	return holds
}

// difference is how far the clock that differs most is ahead of the local wall
// clock (negative: behind); false if none is known.
func (c *clocks) difference(local time.Time) (most time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall := local.Round(0) // without the monotonic reading, which Sub would prefer
	for _, s := range c.servers {
		if d := s.at(local).Sub(wall); !known || d.Abs() > most.Abs() {
			most, known = d, true
		}
	}
	return most, known
}

// ClockDifference is how far Redis's clock is ahead of this machine's (negative:
// behind), as of the last answer; of a cluster, the one that differs most. It is
// false before the first answer. No answer depends on it.
func (r *Reader) ClockDifference() (ahead time.Duration, known bool) {
	return r.clocks.difference(r.local())
}

func (r *Reader) local() time.Time {
	if r.Local != nil {
		return r.Local()
	}
	return time.Now()
}
