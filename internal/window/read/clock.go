package read

import (
	"sync"
	"time"

	"tallyroll/internal/window/internal/cluster"
)

// Redis's clock is now, because keys expire by it. A Reader chooses hashes by an estimate: the latest TIME
// plus the local monotonic time since. It reads TIME in the same round trip, and plans again if the estimate
// was wrong: if Redis's clock was set, its server was replaced, or this machine has slept.

// clocks estimate the clocks of all servers asked lately. Now is the latest: its plan needs no hash that has
// expired on any server, and does not depend on which servers are asked. mu guards servers.
type clocks struct {
	mu      sync.Mutex
	servers map[string]clockSample
}

// clockSample is one reading of a server's clock: the time, the local time, and how far it may be off.
type clockSample struct {
	said, local time.Time
	doubt       time.Duration
}

type instant struct {
	milli int64         // by Redis's clock, Unix milliseconds
	doubt time.Duration // how far milli may be off
	local time.Time     // the same moment by the local clock
}

const (
	// clockTolerance is how far an estimate may be off, in addition to the uncertainty of half a round trip.
	clockTolerance = 500 * time.Millisecond
	// sampleMemory is how long a sample from a quick round trip is preferred to a later one from a slow one.
	sampleMemory = 10 * time.Second
	// clockMemory is how long the clock of a cluster's server counts if the server is not asked again.
	clockMemory = time.Minute
)

func (s clockSample) at(local time.Time) time.Time { return s.said.Add(local.Sub(s.local)) }

func (c *clocks) now(local time.Time) (instant, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest(local)
}

func (c *clocks) latest(local time.Time) (instant, bool) {
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

// learn records the servers' times of a round trip between these local moments. It reports whether a plan
// still holds: every clock was as estimated, and none has advanced by more than grace, that of the hashes.
func (c *clocks) learn(planned instant, sent, received time.Time, times cluster.ServerTimes,
	grace time.Duration) (holds bool) {
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
	// If a clock was set back, the first question to notice replaces its estimate. Others that planned with
	// the old one must plan again too, because their moment is in the future.
	most := 2*half + planned.doubt + clockTolerance - elapsed
	if latest, ok := c.latest(received); ok && planned.milli-latest.milli > most.Milliseconds() {
		holds = false
	}
	return holds
}

// difference returns how far the most different clock is ahead of the local wall clock.
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
