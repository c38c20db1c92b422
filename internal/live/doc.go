// Package live sends totals as server-sent events, at each change.
//
// # What it promises
//
//   - However many clients listen, Redis is read once every readEvery for all of them, and not at all while nobody does.
//   - A slow client holds nobody up. It misses all but the latest news of each question, and is dropped if it leaves
//     what is sent unread for writeTimeout.
//   - Connections and questions are bounded. Beyond a bound the answer is 503, and nobody who listens is cut off.
//
// # What can go wrong
//
// A question without an answer is refused with a status like any other. Later a client hears of it as an event problem,
// and totals resume by themselves. When the service stops, all connections end.
//
// # Goroutines
//
//	goroutine    owns                                                    who waits for it
//	Live.Run     the reads; it tells the listeners under hub.mu          its caller
//	a handler    one listener, until its client goes                     boot.Serve, for five seconds
package live
