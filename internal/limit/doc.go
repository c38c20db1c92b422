// Package limit allows or refuses hits of a key from a rolling window.
//
// # What it promises
//
//   - A decision and the counting of it are one: a script in Redis, by Redis's own clock. However many
//     processes decide about a key, together they allow no more than its limit.
//   - A refused take counts nothing. Takes that are asked for together are counted all or not at all.
//   - Nothing grows without end. A key of the policy Cells has at most 64 cells, whatever the traffic. Keys of Log
//     and Stream hold at most max hits. Every key expires when its last hit has left the window.
//   - Log and Stream are exact to the millisecond. Cells says how far its answer can be off: the hits of the
//     oldest cell, between Lower and Upper.
//
// # What can go wrong
//
// If Redis does not answer in time, the limit's fail mode decides. A reply that was lost may have been
// counted, so a limit can refuse too much then, never allow too much. A fail-over of Redis loses what
// the new master had not received yet: as many hits can then be allowed again.
//
// A key's time never goes back: if the clock of Redis does, the key waits for it. If the clock
// goes back by more than a window, the key begins anew.
//
// # The parts
//
//	limit.go     limits, takes, decisions
//	file.go      named limits from a file
//	template.go  the key of a limit
//	limiter.go   the order of things: memory, Redis, fail mode
//	store.go     keys and scripts in Redis (lua/: decide.lua, a file for each policy, and hot.lua for the common case)
//	denials.go   refusals that are remembered
//	local.go     rings in this process, if Redis is away (ring.go: one of them)
//
// A further policy is a file in lua/ with look, add, give and wait, and its name in Policies.
//
// No goroutine is started.
package limit
