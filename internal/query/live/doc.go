// Package live sends totals as server-sent events, at each change.
//
//   - One pipelined read of Redis every readEvery serves all clients. Without clients, Redis is not read.
//   - A slow client delays no other. It gets only the latest result of each question, and is dropped if it
//     leaves data unread for writeTimeout.
//   - Connections and questions are bounded. Beyond a bound the answer is 503, and no listener is dropped.
//
// A question without an answer is refused with a status. Later the client gets an event problem instead, and
// totals resume by themselves. When the service stops, all connections end.
//
// Live.Run reads, and notifies listeners under hub.mu; its caller waits for it. A handler owns one listener
// until its client leaves; web.Serve waits for it for five seconds.
package live
