// Package watch compares counters with thresholds, and tells targets of each change: the program watch.
//
// # What it promises
//
//   - A state says what the bounds of the counters say. If nobody counts, or hits are missing, it is unknown, unless a
//     lower bound decides all the same. It is never wrong because somebody is away.
//   - No evaluation overwrites a state that it did not know, however many processes evaluate, stand still or are cut off.
//   - Each change is told to each of its targets at least once, with an id that is always the same and of no other change,
//     and to one target in the order of the changes of a rule's key. A target that is away stops no other, and neither does
//     a change that a target does not take: it holds up only later ones of its own rule and key.
//
// # How
//
// The stream WATCH_<namespace> is state, history and outbox in one (stream.go). A change is published with the number of
// the message that it follows, which was noted before Redis was asked: the server refuses it if there is a later one. The
// last message of a subject is the state.
//
// How far a target has been notified is a message of the stream, too: its progress, which is also the lease of the process
// that delivers to it (deliver.go). That process reads the changes from there on. Alertmanager is different: every process
// posts what fires (alertmanager.go).
//
// One process has the seat and evaluates (evaluate.go). That only saves work: the fence is the number.
//
//	ok ──holds──▶ pending ──for is over──▶ firing ──ends──▶ resolved ──holds──▶ pending …
//	any ──nobody knows──▶ unknown ──▶ firing or resolved if it fired before, else pending or ok
//
// # What can go wrong
//
// A publish whose answer is lost may be stored or not: the log that follows the stream finds out, and the next evaluation
// goes on from there. If the stream is deleted, or is another one, the session ends, and states begin anew. If it is an older
// copy of itself, the next session stores again what this process knows and the copy does not. If the file
// cannot be read again, the book before stays in use.
//
// # Goroutines
//
// Run starts, and waits for: the reader of the file, the HTTP server, and watch, which holds one
// session after the other. A session has a book and a stream. Its goroutines are the follower of the stream (log.follow),
// the evaluator, an alertSync for each Alertmanager, a delivery for each other target, the guard that compares the stream,
// and one that waits for another book. The first that fails ends the session. A delivery with the lease has a tenure: one
// goroutine that reads the changes, one that keeps the lease, and one for each rule and key of which a change waits. A
// History, which query has, has one goroutine that follows the stream, and a guard.
//
// # The parts
//
// Without I/O: rule.go judges, state.go has the states, file.go reads the book. With Redis: look.go, which asks about all
// rules in a few round trips. With NATS: stream.go, deliver.go, history.go. target.go and alertmanager.go talk to targets.
package watch
