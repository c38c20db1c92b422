package limit

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// TestCellsBesideOtherCounters compares what cells allow with what a rolling window allows, beside the two
// counters that many limiters use: a fixed window, and two fixed windows of which the earlier one is weighted
// by the part that the rolling window still covers. Each decides about the same clients, and counts what it
// allowed itself. -v prints the table.
func TestCellsBesideOtherCounters(t *testing.T) {
	t.Parallel()
	const clients, most, length = 400, 100, 60_000
	var results []*contest
	for _, name := range []string{"cells", "two weighted windows", "fixed window"} {
		random := rand.New(rand.NewPCG(13, 14)) // the same clients for each
		c := &contest{name: name}
		for range clients {
			c.play(newCounter(name, length), arrivals(random, most, length), most, length)
		}
		results = append(results, c)
	}
	t.Logf("%d clients, %d hits asked for, max %d in a minute\n%s", clients, results[0].decisions, most, contestTable(results))
	for _, other := range results[1:] {
		cells := results[0]
		if cells.wrong >= other.wrong || cells.off >= other.off || cells.worstOff >= other.worstOff ||
			cells.excess >= other.excess || cells.worstExcess >= other.worstExcess {
			t.Errorf("cells are not better than the %s in everything", other.name)
		}
	}
}

// arrivals are the times of a client's hits, in ms, over ten windows: steady, in bursts, or now and then.
func arrivals(random *rand.Rand, most, length int64) []int64 {
	now := worldStart + random.Int64N(length)
	end := now + 10*length
	rate := float64(most) / float64(length) * (0.5 + 2*random.Float64()) // of the limit's own
	burst := []int64{1, 10, most / 2, 2 * most}[random.IntN(4)]
	var out []int64
	for now < end {
		now += int64(random.ExpFloat64() * float64(burst) / rate)
		for range 1 + random.Int64N(burst) {
			out = append(out, now)
			if random.IntN(4) == 0 {
				now++
			}
		}
	}
	return out
}

// counter is a way to count hits in a rolling window, or nearly.
type counter interface {
	count(now int64) float64
	add(now int64)
}

func newCounter(name string, length int64) counter {
	switch name {
	case "cells":
		return &cellCounter{length: time.Duration(length) * time.Millisecond}
	case "fixed window":
		return &windowCounter{length: length}
	}
	return &windowCounter{length: length, weighted: true}
}

// cellCounter is a ring, which counts as the policy Cells does (TestPoliciesAgainstModels).
type cellCounter struct {
	ring   ring
	length time.Duration
}

func (c *cellCounter) count(now int64) float64 {
	v := c.ring.at(time.UnixMilli(now), c.length)
	return float64(v.estimate())
}

func (c *cellCounter) add(now int64) {
	v := c.ring.at(time.UnixMilli(now), c.length)
	c.ring.add(&v, 1)
}

// windowCounter has a number for the current fixed window and one for the window before.
type windowCounter struct {
	length, window  int64
	current, before float64
	weighted        bool
}

func (c *windowCounter) count(now int64) float64 {
	switch window := now / c.length; window - c.window {
	case 0:
	case 1:
		c.window, c.current, c.before = window, 0, c.current
	default:
		c.window, c.current, c.before = window, 0, 0
	}
	if !c.weighted {
		return c.current
	}
	return c.current + c.before*float64(c.length-now%c.length)/float64(c.length)
}

func (c *windowCounter) add(int64) { c.current++ }

// contest is how a counter did. off is the difference between its count and the truth, in hits.
type contest struct {
	name                     string
	decisions, wrong         int
	off, worstOff            float64 // off is a sum over decisions
	excess, worstExcess      int64   // of a client's fullest window over max; excess is a sum over clients
	clients, clientsOverMost int
}

func (c *contest) play(counter counter, arrivals []int64, most, length int64) {
	var allowed []int64 // in the window, the exact log
	fullest := int64(0)
	for _, now := range arrivals {
		for len(allowed) > 0 && allowed[0] <= now-length {
			allowed = allowed[1:]
		}
		truth, count := int64(len(allowed)), counter.count(now)
		fits := count+1 <= float64(most)
		c.decisions++
		if fits != (truth+1 <= most) {
			c.wrong++
		}
		off := max(count-float64(truth), float64(truth)-count)
		c.off, c.worstOff = c.off+off, max(c.worstOff, off)
		if fits {
			counter.add(now)
			allowed = append(allowed, now)
			fullest = max(fullest, int64(len(allowed)))
		}
	}
	over := max(0, fullest-most)
	c.clients++
	c.excess, c.worstExcess = c.excess+over, max(c.worstExcess, over)
	if over > 0 {
		c.clientsOverMost++
	}
}

func contestTable(results []*contest) string {
	var out strings.Builder
	out.WriteString("| counter | wrong decisions | count off by, mean | worst | fullest window over max, mean | worst | clients over max |\n")
	out.WriteString("| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, c := range results {
		fmt.Fprintf(&out, "| %s | %.2f %% | %.2f | %.0f | %.2f | %d | %.0f %% |\n", c.name, 100*float64(c.wrong)/float64(c.decisions),
			c.off/float64(c.decisions), c.worstOff, float64(c.excess)/float64(c.clients), c.worstExcess, 100*float64(c.clientsOverMost)/float64(c.clients))
	}
	return out.String()
}
