// Package limit allows or refuses hits of a key in a rolling window (docs/limits.md).
//
// # The chain
//
// A take passes these deciders, and its answer returns the same way. Each has one method, decide, and a file
// of its own with its contract and its lock:
//
//	Limiter    checks the takes, and names their keys                                            limiter.go
//	shadow     keeps limits in shadow mode from refusing                                          shadow.go
//	shares     spends hits that this process has acquired in advance                              shares.go
//	refusals   refuses what Redis refused less than a second ago                                refusals.go
//	fallback   decides by the fail modes if Redis does not; its breaker skips Redis             fallback.go
//	accounts   hold what this process allowed, and first count in Redis what Redis lacks        accounts.go
//	remote     decides with one script in Redis, or in parts (store, redis.go)                    remote.go
//
// Scripts that are under way at the same time share round trips (trips.go). At the end of the chain, Limiter
// counts decisions on the counters of their limits (count.go; the package counts publishes them).
//
// A settlement (ids.go) passes them, too. Renewals and releases of slots (slots.go) begin at fallback:
// a renewal is a take that fits only if its lease is held, and a release gives a slot back.
//
// # What it promises
//
//   - One script in Redis decides and counts, by Redis's clock. All processes together allow no more than the
//     limit, with shares, too (shares.go has the proof).
//   - Under a limit with the fail mode local, a process never allows more than max in any window, with Redis
//     or without, so N processes at most N times max. Without Redis it counts as Cells do.
//   - In every window, the hits that takes were allowed, as settled, never pass max but by what settlements
//     added to them. A take whose id Redis remembers counts once, and has the hits that it was settled with
//     last. No process remembers ids.
//   - At most max slots of the policy Concurrent are held, as long as Redis decides and its clock does not
//     jump ahead.
//   - A refused take counts nothing. Takes of one request are all counted or none. Shadow mode refuses
//     nothing.
//   - Everything is bounded. A key has at most 64 cells under Cells, and max hits under Log and Stream (under
//     Log, with settlements, twice that). It expires when its last hit leaves the window. Redis keeps to its
//     maxmemory. No script blocks Redis for long: large work is done in steps.
//   - Log and Stream are exact to the millisecond. Cells reports its uncertainty, the hits of the oldest
//     cell, as Lower and Upper.
//
// # What can go wrong
//
// If Redis is late or full, the limit's fail mode decides, about all takes of a shared round trip. A take
// whose reply was lost or late may still be counted, so a limit can refuse too much for up to a window, but
// never allow too much. If this process has allowed the take, it can count twice. If a give-back without an
// id is repeated because its reply was lost, hits are given back twice, and as many more are allowed.
// Without Redis nothing is settled: a take stays as it was taken, and what a settlement would have added is
// lost if it is not repeated. A fail-over of Redis loses what the new master had not received, so as many
// hits can be allowed again.
//
// Beyond LocalKeys keys a process forgets some of those used longest ago; without Redis it can allow their
// hits once more.
//
// If a machine is suspended while a process holds a share, as many hits can be allowed too much. So can be
// some of the oldest hits, for as long as a share lasted, after a reload took shares from a limit of Log or
// Stream.
//
// A key's time never goes back: if the clock of Redis or of a process does, the key waits for it. If it goes
// back by more than a window, the key restarts, and as many hits can be allowed again.
//
// # A further policy
//
// It is a row of the table in policies.go, and a file of its name in lua/ with these functions, which
// lua/decide.lua calls:
//
//	look   returns now, the key's time, which never goes back; date, of hits that are added; the hits that are
//	       certainly in the window, their estimate and the most that may be (lower, count, upper)
//	add    counts hits at the date, and sets when the key expires
//	give   gives back hits, the newest first, of a date or before, or only of it
//	wait   returns when enough hits have left the window for those that did not fit
//	began  tells a key from one that was reset since; without it, correcting a settlement brings back what a
//	       reset took
//
// Everything else has it then: the file of limits, requests, OpenAPI, the page, and the fail modes, which
// count hits without times as leases and others in cells. TestAFurtherPolicyNeedsLuaAndARow follows this
// recipe. docs/limits.md has a column per policy.
//
// Each policy also needs its model: newModel of the tests takes every policy but cells for exact, and
// TestPoliciesAgainstModels compares with it. And each policy doubles the scripts, because there is one for
// each set of policies in a request (newScripts).
//
// The only goroutines send shared round trips, or give back what is left of shares or what Redis counted in
// vain; Limiter.Wait waits for them.
package limit
