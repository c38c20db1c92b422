// Package fresh holds a question back until counting has got as far as the question asks: until it contains
// messages that the client names (after), or until as_of is recent enough (max_age). Afterwards the question
// is answered as always.
//
//   - Contains means that every shard that the answer reads has applied the message. Hits of it that cannot
//     be counted, or that were discarded unread, are not in the answer, as always.
//   - The condition held at one moment after the request came, or at most checkEvery before. The answer is
//     read later, from the same masters, and as_of only grows, so neither is checked again in the answer. A
//     roll-back in between (Redis loses commits) is not noticed.
//   - If the condition does not hold in time, the problem is web.NotYet or web.TooOld. If it cannot come to
//     hold, it is a 400.
//
// One goroutine, Watcher.Run, reads for all who wait, at most every checkEvery, and sleeps while none waits.
// Its caller waits for it. When it ends, so do all waits.
package fresh
