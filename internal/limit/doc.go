// Package limit allows or refuses hits of a key from a rolling window.
//
// # What it promises
//
//   - A decision and the counting of it are one: a script in Redis, by Redis's own clock. However many
//     processes decide about a key, together they allow no more than its limit.
//   - Redis or not, a process never allows more than max in any window of a limit that is local without Redis: N
//     processes no more than N times max. Without Redis it counts as Cells do.
//   - A limit in shadow mode refuses nothing, and counts what it would allow (shadow.go).
//   - With shares, P processes allow less than max + P × share in any window (shares.go has the proof).
//   - No more than max hold a place of the policy Concurrent, as long as Redis's clock does not jump ahead, and Redis decides.
//   - A refused take counts nothing. Takes that are asked for together are counted all or not at all.
//   - Nothing grows without end. A key of the policy Cells has at most 64 cells, whatever the traffic. Keys of Log
//     and Stream hold at most max hits. Every key expires when its last hit has left the window. Redis keeps to its
//     maxmemory.
//   - No script holds Redis up. What is much is done in steps.
//   - Log and Stream are exact to the millisecond. Cells says how far its answer can be off: the hits of the
//     oldest cell, between Lower and Upper.
//
// # What can go wrong
//
// If Redis does not answer in time, or is full, the limit's fail mode decides. A take whose reply was lost or late may be
// counted all the same, so a limit can refuse too much for up to a window, never allow too much. If this process has
// allowed the take, it can count twice. A give-back whose reply was lost or late may be made: who gives back again can
// give back twice, and as many hits more are allowed then. A fail-over of Redis loses what the new master had not received yet: as many hits can then be
// allowed again.
//
// A process that has more than LocalKeys keys forgets those that were used longest ago. What it has allowed of them can
// be allowed once more if Redis is away.
//
// A key's time never goes back: if the clock of Redis does, the key waits for it. If the clock
// goes back by more than a window, the key begins anew, and as many hits can be allowed again. The clock of a process
// is treated in the same way.
//
// A further policy is a file in lua/ with look, add, give and wait, and its name in Policies.
//
// # Goroutines
//
// A decision starts none. What is left of a share is given back by one. Limiter.Wait waits for them.
package limit
