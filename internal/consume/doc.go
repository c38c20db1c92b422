// Package consume brings hits from JetStream to Redis: stream → decode →
// coalesce → commit.
//
// # What it promises
//
// Every message that a stream stores is either added to the cells of its
// counters exactly once, or, hit by hit, found again in the stream
// HITS_REJECTED with the reason. Messages that the stream discarded before
// they were read are counted as discarded, and the answers about their time say
// that they are incomplete.
//
// # How a stream is read
//
// A session (session.go) is one attempt to keep a stream flowing. It reads the
// cursors of all shards from Redis, compares them with the stream (resume.go),
// and reads from the smallest one with an unacknowledged consumer; a shard that is
// further on skips what it has. Three goroutines share a session: the reader
// decodes and coalesces into the filling half of a buffer (buffer.go), the
// committer takes that half at each flush and commits it shard by shard
// (commit.go), and the watch asks the stream every second where its end is
// (watch.go). What it answers is believed once it is known who answered
// (confirm.go). While a commit is under way the other half fills; when both are
// full the reader waits, and the stream holds the hits.
//
// # How streams are shared
//
// Each worker keeps a key alive in a NATS bucket (fleet.go); what it knows of the
// others is its roster (roster.go). The one that has been there longest writes a plan
// (assign.go), the worker (worker.go) runs sessions for its share. Streams that
// were deleted are let go (ended.go).
//
// # What can go wrong
//
// Whatever is not understood ends the session: a gap in the delivery, a moved
// cursor, a stream made anew, a reconnect. The next session starts from what
// Redis and the stream say then. Nothing is carried over, so nothing can be wrong.
//
// # Shutdown
//
// In this order: stop reading, commit what is in memory (with a deadline of
// its own), delete the consumer, leave the fleet, close the clients.
package consume
