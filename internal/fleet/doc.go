// Package fleet decides which worker of a namespace reads which stream.
//
// # What it promises
//
// Workers that reach the same NATS server divide the streams among them: each stream
// has one worker, loads differ by one stream at most, and few streams move when a
// worker comes or goes (assign.go). A worker lets a stream go before the next one
// takes it. If a worker is killed or hangs, the others notice after three seconds.
//
// All of this is only about who does the work. The cursors alone make sure that every hit
// counts once: if workers see the fleet differently, they waste work and do no other harm.
//
// # When it acts
//
// Each worker writes a key of its own every second, and at once if what it holds has
// changed. It watches the others' keys (bucket.go) and keeps a roster of them
// (roster.go). The worker that has been there longest writes the plan, which assigns
// each stream to a worker. It does so with every beat, and whenever a worker or a stream
// comes or goes. All workers follow the plan.
//
// A worker is known by a random token, made anew by each process. Its name is a
// label for people: two processes of one name are two workers.
//
// # What can go wrong
//
// If a worker cannot reach the bucket, it keeps the streams that it has and goes on
// trying. If it has never been in the fleet, or has no right to the bucket, it reads every
// stream in the meantime. If its own beats do not come back to it, it decides nothing. If the
// server has lost the bucket, the workers make it again, and the new plan starts from
// the one that they know. Nothing here ends a worker.
//
// # The goroutine
//
// Fleet.Run is the one goroutine. It owns the bucket and all that is written to it;
// whoever starts it waits for its end. Fleet.mu guards what it shares with the methods that a
// worker calls, and no method blocks on a server. It ends a watch in the background, because
// that asks a server, which may hang. Nobody waits for this, and it owns nothing.
package fleet
