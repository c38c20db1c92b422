// Package fleet decides which worker of a namespace reads which stream.
//
// Workers at the same NATS server divide the streams: each stream has one worker, loads differ by at most one
// stream, and few streams move when a worker joins or leaves (assign.go). A worker releases a stream before
// the next one takes it. If a worker dies or hangs, the others notice after three seconds. Correctness does
// not depend on any of this: the cursors alone make sure that every hit counts once, so workers with
// different views only waste work.
//
// Each worker writes its own key every second, and at once when its streams change, and watches the others'
// (bucket.go, roster.go). The oldest worker writes the plan, which assigns the streams, at each heartbeat and
// when a worker or a stream comes or goes. A random token identifies each process; its name is only a label.
//
// If a worker cannot reach the bucket, it keeps its streams and retries. If it has never joined, or may not
// use the bucket, it reads every stream meanwhile. If its own heartbeats do not come back to it, it decides
// nothing. If the server has lost the bucket, the workers recreate it, and the new plan continues the one
// that they have. Nothing here stops a worker.
//
// Fleet.Run is the one goroutine and owns the bucket; its caller waits for its end. Fleet.mu guards what it
// shares with the methods, none of which blocks on a server. It ends a watch in the background, because that
// asks a server, which may hang; nothing waits for this.
package fleet
