// Package consume brings hits from JetStream to Redis: stream → decode →
// coalesce → commit.
//
// # What it promises
//
// A Keeper adds every hit of a stored message to the cells of its counter exactly once. If it
// cannot count a hit, it puts that hit into the stream HITS_REJECTED with the reason. If the
// stream discards messages before they are read, the Keeper counts them as discarded, and
// the answers about their time say that they are incomplete.
//
// # How a stream is read
//
// A Keeper (keep.go) runs one session after another for each stream that package worker gives it. A session
// (session.go) is one attempt to keep a stream flowing, in four phases:
//
//   - resuming (resume.go): it reads the cursors of all shards from Redis, compares them
//     with the stream, and decides where each shard goes on, and by which names and rules
//     (naming.go, rulebook.go);
//   - opening: it asks for the messages after the smallest cursor with an unacknowledged
//     consumer, and makes sure that the stream is still the one that it has judged;
//   - counting: the reader (reader.go) decodes and coalesces into the filling half of a
//     buffer (buffer.go). The committer (commit.go) takes that half at each flush and commits
//     it shard by shard; a shard that is further on skips what it has. Meanwhile the
//     other half fills. If both are full, the reader waits, and the hits wait in the
//     stream. The watcher (watch.go) asks the stream every second where its end is. It
//     believes an answer once it knows that the stream's leader gave it (internal/source);
//   - ending: it stops reading and commits what it has read.
//
// The cursors of a stream at rest stand still. What they would tell is claimed for all streams of the
// Keeper together (idle.go). Endings (ended.go) lets go of streams that were deleted.
//
// # What can go wrong
//
// Anything unexpected ends the session: a gap in the delivery, a moved
// cursor, a stream that was recreated, a reconnect. The next
// session starts from what Redis and the stream say then. It takes over nothing from the one
// before but how long to wait, so it cannot take over a mistake.
//
// # Goroutines
//
// Whoever calls Keep, KeepClaiming and KeepSweeping gives each a goroutine. A session has:
//
//	goroutine                  owns                              ended by                waited for by
//	Keep's                     the sessions, one by one; the     its ctx                 its caller
//	                           committer and its cursors
//	the feed's                 the reader                        feed.Stop               nobody: the buffer is closed
//	feed.watch                 the consumer's silence            feed.Stop               nobody
//	watcher                    what it has seen                  the session's life      its session
//	one per shard of a flush   that shard's writer               its commit              the flush
//
// State that several of them use has a lock beside it: buffer, tail, committed, Waits, outage,
// clocks, claims and Rulebook.
package consume
