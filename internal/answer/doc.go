// Package answer answers questions about counters: a question in, an answer out. It has no handlers and no listener.
//
// # What it promises
//
//   - An answer is read from Redis when it is asked for. Totals take one round trip.
//   - Every total comes with bounds, every answer with the moment up to which it is whole (as_of). A window that reaches
//     far beyond that moment has no upper bound. Now is what Redis's clock says, never this machine's.
//   - HTTP and NATS give the same answers and the same problems. An Input says which parts of a request to name.
//   - Nothing in Redis is changed.
//
// # When it acts, and what can go wrong
//
// A question waits for Redis for at most Source.Timeout. Ask makes of the reader's errors what a client is told: 400 for a
// question that the client must correct, 413 for one that costs more than the settings allow, 500 for a key that another
// program has written to, 503 with Retry-After if Redis cannot answer now. What Redis said goes to the log only.
//
// # The parts
//
// input.go checks what requests say and makes periods of it. total.go, sum.go, series.go, lists.go and probe.go have an
// answer each, groups.go those about groups of names, export.go one of any length, in pages. calendar.go has the windows and steps of a time zone, and source.go the reads. There are no goroutines.
package answer
