package window

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A producer that puts an id into a name, or a stranger who names pages, makes as many counters as it likes.
// A bound says how many may begin with a prefix. A worker counts the hits of a new one without room on the
// overflow counter of its shard, in the transaction that moves the cursor. Nothing is stored about such a
// decision: whatever another worker or a repetition decides, each hit is in one of two counters of one shard,
// and the cursor of that shard shows by the hash of the hit's own counter whether it is applied.
//
// The overflow counter is an ordinary one: the number at the end of its name puts it on its shard. So what
// reads, lists, erases, audits or expires counters needs to know nothing of it.

// NameBound is the most counters whose names begin with a prefix.
type NameBound struct {
	Prefix string
	Max    int
}

// NameBounds are those of a namespace, the longest prefix first. The first whose prefix a name has decides.
type NameBounds []NameBound

const (
	// OverflowPart follows the prefix in the names of overflow counters.
	OverflowPart = "~other."
	// LeastNames is the least that a bound may be.
	LeastNames = 1000
)

// ParseNameBounds parses a list such as "web.=10000,iot/=200000". "=5000000" bounds all other names.
func ParseNameBounds(text string) (out NameBounds, err error) {
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		equals := strings.LastIndexByte(part, '=')
		most, err := strconv.Atoi(part[equals+1:])
		if equals < 0 || err != nil || most < LeastNames {
			return nil, fmt.Errorf("%q is not a prefix, =, and a number from %d", part, LeastNames)
		}
		prefix := part[:equals]
		if slices.ContainsFunc(out, func(b NameBound) bool { return b.Prefix == prefix }) {
			return nil, fmt.Errorf("the prefix %q has two bounds", prefix)
		}
		out = append(out, NameBound{prefix, most})
	}
	slices.SortFunc(out, func(a, b NameBound) int { return cmp.Compare(len(b.Prefix), len(a.Prefix)) })
	return out, nil
}

// Of returns the bound of a counter; false if it has none. AllHits and the overflow counter of the shard have
// none. Another counter with such a name has one, or a stranger could make as many of these.
func (b NameBounds) Of(l Layout, c *CounterHits) (NameBound, bool) {
	if c.Name == AllHits {
		return NameBound{}, false
	}
	for _, bound := range b {
		if rest, ok := strings.CutPrefix(c.Name, bound.Prefix); ok {
			if !strings.HasPrefix(rest, OverflowPart) {
				return bound, true
			}
			return bound, l.Overflow(bound.Prefix, l.ShardOf(c.CounterHash)) != c.Name
		}
	}
	return NameBound{}, false
}

// PerShard returns how many counters of a shard may have the prefix.
func (b NameBound) PerShard(l Layout) int { return (b.Max + l.Shards - 1) / l.Shards }

// Overflow returns the name of the counter of a shard that new names with a prefix count on without room.
func (l Layout) Overflow(prefix string, shard int) string {
	for i := 0; ; i++ {
		name := prefix + OverflowPart + strconv.Itoa(i)
		if l.ShardOf(HashCounter([]byte(name))) == shard {
			return name
		}
	}
}

// OverflowsTo reports whether a counter is an overflow counter that may have hits of counters whose names
// begin with prefix, and does not begin with it itself.
func OverflowsTo(prefix, counter string) bool {
	end := strings.LastIndex(counter, OverflowPart)
	return end >= 0 && strings.HasPrefix(prefix, counter[:end]) && !strings.HasPrefix(counter, prefix)
}

// ListedEpoch returns the latest epoch of NamesTier in which a commit lists a counter; false if it lists
// none.
func (s *ShardBatch) ListedEpoch(c *CounterHits) (epoch int64, ok bool) {
	c.Order()
	coarsest := len(s.Layout.Tiers) - 1
	t := s.Layout.Tiers[coarsest]
	for _, h := range slices.Backward(c.slots) {
		switch begins := h.slot.Begins(); {
		case c.sparse && s.heldByAll(h.slot):
			return s.NamesTier.EpochAt(begins), true
		case h.slot.IsIn(coarsest):
			return s.NamesTier.EpochAt(t.EpochStart(t.EpochAt(begins))), true
		}
	}
	return 0, false
}

// MoveHits moves the hits and unique values of some counters to another one, whose hits go into no log. Call
// it only for what one transaction commits (after Split): a part has the hits of its counters, whose hashes
// decide whether they are applied.
func (s *ShardBatch) MoveHits(from []int, name string) {
	at := slices.IndexFunc(s.Counters, func(c CounterHits) bool { return c.Name == name })
	if at < 0 {
		at = len(s.Counters)
		s.Counters = append(s.Counters, CounterHits{Name: name, CounterHash: HashCounter([]byte(name))})
	}
	to := &s.Counters[at]
	to.sparse, to.folds, to.slots = false, false, slices.Clone(to.slots)
	for _, i := range from {
		c := &s.Counters[i]
		for _, h := range c.slots {
			s.add(to, h.slot, h.n)
		}
		if c.Extras != nil {
			for k := range c.Extras.Uniques {
				s.moveUniques(to, &c.Extras.Uniques[k])
			}
		}
		c.slots, c.Extras = nil, nil
	}
}

func (s *ShardBatch) moveUniques(to *CounterHits, u *SlotUniques) {
	x := s.extrasOf(to)
	for i := range x.Uniques {
		if x.Uniques[i].Slot == u.Slot {
			x.Uniques[i].Sketch.Merge(&u.Sketch)
			return
		}
	}
	x.Uniques, x.uniquePlaces = append(x.Uniques, SlotUniques{u.Slot, *u.Sketch.Clone()}), nil
}
