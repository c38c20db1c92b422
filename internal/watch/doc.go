// Package watch compares counters with thresholds, and notifies targets of each change: the program watch.
//
// # What it promises
//
//   - A state follows the bounds of the counters. If no worker counts, or hits are missing, it is unknown,
//     unless a lower bound decides. An outage yields unknown, never a wrong state.
//   - No evaluation overwrites a state that it has not read, however many processes evaluate, stall or are
//     cut off.
//   - Each change is delivered to each of its targets at least once, with a stable and unique id, and to one
//     target in the order of its rule and key. A target that is down delays no other. A change that a target
//     does not accept delays only later ones of its rule and key.
//
// # How
//
// The stream WATCH_<namespace> is state, history and outbox in one (history/state.go, stream.go): the last
// message of a subject is its state. A change is published with the expected sequence of the message that it
// follows, which was read before Redis was, and the server refuses it if there is a later one. One process,
// the leader, evaluates (evaluate.go). Leadership only saves work; correctness comes from the expected
// sequence.
//
// A target's progress is a message of the stream, too, and the lease of the process that delivers to it
// (deliver.go). Alertmanager is different: every process posts all firing alerts (alertmanager.go).
//
//	ok ──holds──▶ pending ──for is over──▶ firing ──ends──▶ resolved ──holds──▶ pending …
//	any ──unknown──▶ unknown ──▶ firing or resolved if it fired before, else pending or ok
//
// # What can go wrong
//
// If the reply to a publish is lost, the process reads from the stream whether it was stored, and the next
// evaluation continues from there. If the stream is deleted, replaced, or an older copy of itself, the
// session ends, and the next one continues with what the stream has then.
//
// # Goroutines
//
// Run starts and waits for the reader of the file, the HTTP server, and service.runSessions, which runs one
// session after the other. A session's goroutines are stateStream.follow, the evaluator, an alertSync for
// each Alertmanager, a delivery for each other target, stateStream.monitor, and one that waits for another
// rule set. The first that fails ends the session. A delivery with the lease has a deliverySession:
// goroutines that read the changes and keep the lease, and one for each rule and key with a waiting change.
package watch
