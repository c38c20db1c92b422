package limit

import (
	"strings"
)

// Policy is how hits are kept for a limit: the name of a row of the table in this file.
type Policy string

const (
	// Cells keeps at most 64 numbers per key. Hits of the oldest cell count by the part inside the window.
	Cells Policy = "cells"
	// Log keeps a member of a sorted set per hit. It is exact to the millisecond.
	Log Policy = "log"
	// Stream keeps an entry of a Redis stream per take. It is exact to the millisecond.
	Stream Policy = "stream"
	// Fixed keeps a number per key: the hits since the last turn of the clock or the calendar. It is exact.
	Fixed Policy = "fixed"
	// Concurrent keeps a member of a sorted set per slot in use. A take acquires one slot under the name of a
	// lease. The lease holds the slot until it is released, or for a window after it was last renewed.
	Concurrent Policy = "concurrent"
)

// Traits are what the program needs to know of a policy. lua/<name>.lua does the rest.
type Traits struct {
	Policy Policy
	Kept   string // how hits are kept, after "Hits are kept"
	Max    int64  // the largest max of a limit
	// MaxTake bounds the hits of all takes of a request, because they block Redis; 0: max alone bounds each.
	MaxTake int64
	// Settles means that the takes can be settled.
	Settles bool
	// Turns means that hits count until the end of their period: then the key has none. Only such a policy has
	// periods of a calendar.
	Turns bool
	// Slots means that hits have no times: a take acquires one slot, which a lease holds. The wait of a refusal
	// ends with the first lease, and a slot can be free before, so no refusal is remembered. Without Redis, this
	// process counts its leases, and not cells. Shares and ids need times, and a release needs the name of the
	// limit.
	Slots bool
	// Unit is the quota unit in the field RateLimit-Policy; empty: hits in a window.
	Unit string

	fast string // the Lua file that comes before all others if no other policy is asked for
}

// table has a row per policy. The first is the default.
var table = []Traits{
	{Policy: Cells, Kept: "in cells: exact to a 60th of the window", Max: MaxHits, Settles: true, fast: "hot"},
	{Policy: Log, Kept: "in a log: exact", Max: MaxExactHits, MaxTake: MaxLogTake, Settles: true},
	{Policy: Stream, Kept: "in a stream: exact", Max: MaxExactHits},
	{Policy: Fixed, Kept: "in a number: exact since the last turn of the window", Max: MaxHits, Settles: true,
		Turns: true, fast: "hotfixed"},
	{Policy: Concurrent, Kept: "as leases: how many at once", Max: MaxSlots, Slots: true, Unit: "concurrent-requests"},
}

// index returns the policy's row of the table, or -1.
func (p Policy) index() int {
	for i := range table {
		if table[i].Policy == p {
			return i
		}
	}
	return -1
}

// Traits returns the policy's row of the table; an empty one if it has none.
func (p Policy) Traits() *Traits {
	if i := p.index(); i >= 0 {
		return &table[i]
	}
	return new(Traits)
}

// Policies are those that count hits in a window. The first is the default.
func Policies() []Policy { return policiesThat(func(t *Traits) bool { return !t.Slots }) }

// NamedPolicies are those of named limits: all.
func NamedPolicies() []Policy { return policiesThat(func(*Traits) bool { return true }) }

func policiesThat(fits func(*Traits) bool) (out []Policy) {
	for i := range table {
		if fits(&table[i]) {
			out = append(out, table[i].Policy)
		}
	}
	return out
}

// slotPolicies names the policies that have slots, for errors.
func slotPolicies() string {
	return "the policy " + Or(policiesThat(func(t *Traits) bool { return t.Slots }))
}

// Or lists the values of a field: cells, log or stream.
func Or[T ~string](all []T) string {
	last := len(all) - 1
	if last < 1 {
		return list(all)
	}
	return list(all[:last]) + " or " + string(all[last])
}

func list[T ~string](all []T) string {
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = string(a)
	}
	return strings.Join(names, ", ")
}
