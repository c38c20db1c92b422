// Package consume brings hits from JetStream to Redis: stream → decode → coalesce → commit.
//
// A Keeper adds every hit of a stored message to its counter's cells exactly once, or stores it in
// HITS_REJECTED with the reason. If the stream discards messages before they are read, answers about their
// time are incomplete. docs/design.md follows a hit through the code.
//
// For each stream a Keeper runs one session after another. Anything unexpected ends a session: a gap in the
// delivery, a moved cursor, a recreated stream, a reconnect. The next one starts from what Redis and the
// stream then hold. It inherits only how long to wait, so it cannot inherit a mistake.
//
// The callers of Keep, KeepClaiming and KeepSweeping give each a goroutine. A session has:
//
//	goroutine                owns                             ended by                waited for by
//	Keep's                   the sessions, one by one; the    its ctx                 its caller
//	                         committer and its cursors
//	the feed's               the reader                       feed.Stop               not (the buffer closes)
//	feed.watch               the consumer's silence           feed.Stop               not
//	watcher                  the stream's last check          the session's context   its session
//	eachShard's, some per    the writers of its shards, one   its call                eachShard
//	flush, start and end     by one
//
// Shared state has a lock: buffer, tail, committed, Waits, outage, clocks, claims and Rulebook.
//
// Files call those after them: keep, ended, session; resume, reader, watch and commit; history; setup; buffer
// and decode; rulebook and naming; report, idle and metrics.
package consume
