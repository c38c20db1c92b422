// Package audit counts again what the streams hold, and compares it with every cell in Redis: the program
// audit. docs/operations.md describes its use.
//
// # What it promises
//
// A difference is a cell with another number of hits (a unique cell: other registers) than the streams hold
// up to the cursors, unless a cursor marks that time as incomplete, or messages that the streams no longer
// hold can explain it. A run without differences has compared every cell of every counter in every tier. It
// only reads: it writes no key of Redis and creates no durable consumer.
//
// # While workers count
//
// Counts and cursor move in one transaction. So one transaction reads cells of a shard together with its
// cursors of all streams (inspect.Inspector), and they agree whatever workers commit or Redis loses. Then the
// streams are read, and each hit that those cursors show as applied (window.Cursor.Applied, which handles
// commits in parts) is subtracted from the cells. The remainder is a difference.
//
// Not judged are a hash that expires by then, and a cell later than those requested. A counter that the
// streams show but Redis does not list is compared at the cursors read before the names: name and cells are
// written in one transaction, so they had to be there.
//
// If names overflow, Redis does not store which ones: a hit is in its own counter or in the overflow
// counter of its shard. So each listed counter may have less than the streams, and no more. The sum of the
// listed ones and the overflow must be that of the streams. The overflow is read before the names are
// listed, so a counter that is not listed had all its hits there. If commits come before a listed counter
// is read, the sum may have too many, up to its hits in these commits. A sum's cell is compared only while
// a hash without jitter would live.
//
// Unique cells are read of counters of which the sweep of all keys found any, because each counter can have
// many. If the streams show some of another counter, they are read last, and must hold at least these. If
// names overflow, registers that a counter lacks are no difference, and unique cells of overflow counters are
// not compared.
//
// # Memory
//
// Names are read in order with their cells until the memory of a pass is full. Each such range is one pass
// over the streams, and is cut shorter if they show much that Redis lacks. A hit is in exactly one range.
// Sums of overflows are kept for all passes; those of the streams are made in the first one.
//
// # Which hits a message has
//
// Those that the worker made of it: the same decoder, subjects and rules, by the versions in the cursors
// (consume.Recount), and the workers' limits (INGEST_MAX_AHEAD, INGEST_MAX_HITS). So rejects are refused
// again and count nothing; one that was redriven is a message of its own.
//
// # What can be decided
//
// A hit may be in the hashes of all tiers that held it, or in a sparse log: a cell is what both have of it.
//
// Redis has hits of messages that a stream no longer holds: discarded by age or size, purged, deleted, rolled
// back, or gone with the stream. A message counts no later than it was stored. So each stream has a moment up
// to which missing messages may have been stored, and what begins later is complete:
//
//   - A gap between two messages, or before the first one held, ends when the next was stored.
//   - If the stream was deleted, ends before the cursors, or holds nothing as late as the latest message that
//     they name (the clock of NATS was set back), it is the moment that they name (window.Cursor.Latest).
//   - Messages whose rules are lost count as missing.
//   - For streams that ended so long ago that they are not listed any more, it is how far the coarsest tier
//     reaches back, because hashes live a little longer.
//
// A cell adds up all streams, so cells are decided from the latest of these moments on. Before it, Redis must
// have what the streams show: less is a difference, more is reported as "not held any more".
//
// Cells that differ are "incomplete" if they begin before a cursor's IncompleteBefore, which includes streams
// that a worker found recreated or rolled back; after a change of tiers, before a tier's complete_from; and
// unique cells before window.Layout.UniquesFrom, because other tiers refuse other hits as too late. Cells of
// the tiers before a change, kept until it is confirmed, are not read.
//
// Redis stores when counters of a shard were last erased, not which. A cell of that shard that begins earlier
// and has fewer hits than the streams is undecided.
//
// Not detected: messages stored while the clock of NATS was ahead and purged since, if a message still held
// was stored later; two errors in one cell that cancel out; an extra cell in a hash that expires within the
// second; unique cells of an unlisted counter of which no stream has a hit.
//
// # What else is compared
//
//   - The stream must hold the message that a cursor names, stored at the same nanosecond, and not end before
//     it. Otherwise the cursor was changed, or the stream was rolled back with no worker to notice.
//   - All keys of the namespace are read once, for hashes, logs, unique cells, names and summaries that never
//     expire or expire too early, counters whose coarsest hash, log or unique cell is not listed, unknown
//     keys, and cursors of unlisted streams. A later expiry loses nothing: tools that copy keys by their TTL
//     leave one.
//
// # What it cannot judge
//
// Exit code 2 means, with the reason: no layout, or another version of it; no cursor; a live stream that NATS
// lacks, or with another creation than in the cursors; no stream left; a server that does not answer or
// refuses; a stream that is recreated or rolled back meanwhile; names that begin to overflow meanwhile; an
// interrupt.
//
// A feed's goroutine decodes messages under the lock of its reading. Run does the rest, and waits for it.
package audit
