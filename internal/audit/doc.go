// Package audit counts again what the streams hold, and compares it with every cell that Redis holds: it is the program
// audit.
//
// # What it promises
//
// A difference is a cell in which Redis has another number of hits, or a unique cell in which it has other registers, than
// the streams hold up to the place that Redis says it has applied, if nobody has admitted that hits of that time may be
// missing or count twice, and if what the streams no longer hold cannot explain it. A run without differences has compared every cell of every counter in every tier.
// It only reads: no key of Redis is written, and no durable consumer is made.
//
// # Beside live workers
//
// Counts and cursor move in one transaction. So the cells of some counters of a shard and that shard's cursors, of all
// streams, are read in one transaction too (window.Inspector): they belong together, whatever workers commit before and
// after, and whatever Redis loses. Then the streams are read, and each hit is taken off the cells that were read if the
// cursors read with them say that it was applied (window.Cursor.Applied, which knows commits in parts). What is left is a
// difference.
//
// A hash that expires by then is not judged, nor a cell later than those that were asked for. A counter that the streams
// show and that was not listed is held against the cursors that were read before the names were: its name and cells were
// written in one transaction, so they had to be there.
//
// Unique cells are read of the counters of which the first look at all keys has found any, because each counter can have many.
// If the streams show unique values of another one, its unique cells are read last, and may hold no less than these raise.
//
// # Memory
//
// Names are read in order, with their cells, until the memory of a pass is full; that range of names ends there, and the
// streams are read once for it. If the streams show much that Redis lacks, the range is cut shorter on the way. So the
// streams are read as often as the cells need memory, and a hit is in exactly one range.
//
// # Which hits a message has
//
// What the worker made of it: the same decoder, subjects and rules, by the versions that the cursors list
// (consume.Recount), with the limits that the workers have (INGEST_MAX_AHEAD, INGEST_MAX_HITS). So rejects, too, are
// refused again and count nothing; one that was sent again is a message of its own.
//
// # What can be decided
//
// Redis has hits of messages that a stream no longer holds: they were discarded by age or size, purged, deleted, rolled
// back, or went with the stream. A message counts no later than it was stored. So there is a moment for each stream up to
// which missing messages may have been stored, and what begins later is complete:
//
//   - each gap between two messages ends when the second was stored, and the first message held ends the gap before it;
//   - if the stream ends before the cursors, or the latest message that they name was stored later than any that is held
//     (the clock of NATS was set back), it is the moment that they name (window.Cursor.Latest);
//   - a stream that was deleted: likewise;
//   - messages whose rules are lost are as good as missing;
//   - streams that ended so long ago that they are not listed any more: the moment to which the coarsest tier reaches
//     back, because hashes live a little longer.
//
// A cell adds up all streams. So from the latest of these moments on, cells are decided. Before it, Redis must have at
// least what the streams show: less is a difference, and more is "not held any more", which is counted and said.
//
// Before a cursor's IncompleteBefore hits may be missing or count twice, and the cursor admits it. Cells that differ there
// are "admitted". So are those of a stream that was recreated or rolled back: the worker that found it admits it.
//
// If the tiers were changed, cells from before a tier's complete_from are "admitted", too. Cells of the tiers before the
// change, which are kept until it is confirmed, are not looked at. Unique cells are the same before and after a change, but
// other tiers refuse other hits as too late: those that begin before window.Layout.UniquesFrom are "admitted" if they differ.
//
// Redis keeps when counters of a shard were last erased, not which. A cell of that shard that begins before then and has
// fewer hits than the streams is undecided.
//
// What is not seen: messages that were stored while the clock of NATS was ahead, and purged since, if a message that is
// held was stored later still. Two errors in one cell that cancel each other out. A cell that should not be there, of a
// hash that expires within the second. Unique cells of a counter that nobody lists, and of which no stream has a hit.
//
// # What else is compared
//
//   - The message that a cursor names must be the one that the stream holds there, stored at the same nanosecond, and the
//     stream must not end before it. Otherwise the cursor was changed, or the stream was rolled back with no worker to
//     see it.
//   - All keys of the namespace are looked at once: hashes that never expire, hashes of counters that no set of names
//     lists, keys that no writer would write, cursors of streams that are not listed.
//
// # What it cannot judge
//
// It ends with exit code 2 and says why: no layout, or one of another version; no cursor; a live stream that NATS does not
// have, or that was created at another moment than the cursors say; no stream left; a server that does not answer or
// refuses; a stream that is recreated, or rolled back, meanwhile; an interrupt.
//
// # The files
//
//	run.go       settings, flags, exit codes
//	audit.go     the passes, one after the other
//	streams.go   which streams there are, and whether they are those that were counted
//	reading.go   the messages of a stream in order, through lost connections, and what is missing between them
//	ledger.go    what Redis holds of a range of names, and what the streams take off it
//	report.go    differences, what is undecided, the last line
//
// # Goroutines
//
// The messages of a stream are decoded by the goroutine of its feed, under the lock of its reading. Everything else is
// done by Run's, which waits for that.
package audit
