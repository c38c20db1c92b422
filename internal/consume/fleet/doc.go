// Package fleet decides which worker of a namespace reads which stream.
//
// Workers at the same NATS server divide the streams: each stream has one worker, loads differ by at most one
// stream, and few streams move when a worker joins or leaves (assign.go). A worker releases a stream before
// the next one acquires it. If a worker dies or hangs, the others detect it after three seconds. Correctness
// does not depend on this: the cursors ensure that every hit counts once, so workers with different views
// only waste work.
//
// Each worker writes its own key every second, and at once when its streams change, and watches the others'
// (bucket.go, roster.go). The leader, which is the oldest worker, writes the plan, which assigns the streams,
// at each heartbeat and when a worker or a stream joins or leaves. A random token identifies each process;
// its name is only a label.
//
// If a worker cannot reach the bucket, it keeps its streams and retries. If it has never joined, or may not
// use the bucket, it reads every stream meanwhile. If its watch does not deliver its own heartbeats, it
// decides nothing. If the server has lost the bucket, the workers recreate it, and the new plan continues the
// one that they have. Nothing here stops a worker.
//
// Fleet.Run is the one goroutine and owns the bucket; its caller waits for it. Fleet.mu guards what it shares
// with the methods, none of which blocks on a server. Two goroutines without an owner end each watch, because
// that request may hang, and updates under way must not block the library.
package fleet
