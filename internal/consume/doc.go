// Package consume brings hits from JetStream to Redis: stream → decode →
// coalesce → commit.
//
// # What it promises
//
// A worker adds every hit of a stored message to the cells of its counter exactly once. If it
// cannot count a hit, it puts that hit into the stream HITS_REJECTED with the reason. If the
// stream discards messages before they are read, the worker counts them as discarded, and
// the answers about their time say that they are incomplete.
//
// # How a stream is read
//
// A worker (worker.go) runs one session after another for each stream of its share
// (keep.go). A session (session.go) is one attempt to keep a stream flowing, in four phases:
//
//   - resuming (resume.go): it reads the cursors of all shards from Redis, compares them
//     with the stream, and decides where each shard goes on;
//   - opening: it asks for the messages after the smallest cursor with an unacknowledged
//     consumer, and makes sure that the stream is still the one that it has judged;
//   - counting: the reader (reader.go) decodes and coalesces into the filling half of a
//     buffer (buffer.go). The committer (commit.go) takes that half at each flush and commits
//     it shard by shard; a shard that is further on skips what it has. Meanwhile the
//     other half fills. If both are full, the reader waits, and the hits wait in the
//     stream. The watcher (watch.go) asks the stream every second where its end is. It
//     believes an answer once it knows that the stream's leader gave it (confirm.go);
//   - ending: it stops reading and commits what it has read.
//
// The cursors of a stream at rest stand still. What they would tell is claimed for all streams of the
// worker together (idle.go).
//
// Package fleet decides which streams are this worker's share. The worker finds new streams, own.go makes
// those that the settings ask for, and ended.go lets go of those that were deleted. advisory.go lists streams in
// Redis before any as_of passes them.
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
//	goroutine                  owns                              ended by                waited for by
//	readShare                  the list of streams, its share    the end of Run's ctx    Run
//	the status server          its listener                      the end of readShare    Run
//	the fleet's                its key and watch (fleet)         readShare, last         readShare
//	keep, one per stream       the sessions, one by one; the     the share, or ctx       readShare
//	                           committer and its cursors
//	the feed's, per session    the reader                        feed.stop               nobody: the buffer is closed
//	feed.watch, per session    the consumer's silence            feed.stop               nobody
//	watcher, per session       what it has seen                  the session's life      its session
//	one per shard of a flush   that shard's writer               its commit              the flush
//	census, one round          the look at all streams           its second              readShare
//	claims                     when claims are written           ctx                     readShare
//	probe                      nothing                           its two seconds         readShare
//
// State that several of them use has a lock beside it: buffer, tail, committed, waits, outage,
// clocks, status, census, claims and the worker's own mu.
//
// # Shutdown
//
// shutdown.go lists the steps in order, and how long each may take.
package consume
