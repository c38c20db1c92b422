// Package window is time and storage: how hits become cells of Redis hashes,
// and how cells become rolling totals.
//
// # What it promises
//
// A hit belongs to exactly one cell of each tier that still holds its time. A
// commit adds a batch of cells and moves the stream's cursor in one Redis
// transaction, so that a stored hit counts exactly once whatever crashes. An
// answer is a total with two bounds; the truth is always between them.
//
// # The parts
//
// Pure (no I/O): durations and tiers (duration.go, tier.go), the arithmetic of
// cells, epochs and deadlines (epoch.go), the layout that maps counters to
// shards (layout.go), the batch that coalesces hits (batch.go), the time that a
// question asks about (span.go) and its plan (plan.go), estimates of Redis's clock (clock.go), and summaries of the counters with most hits for
// segments of time (summary.go, segment.go). Key names are built in keys.go and nowhere else.
//
// Redis: the layout record (store.go), the list of streams (streams.go), the
// cursor and the commit (cursor.go, commit.go) with the names and summaries that it
// writes (names.go, topwriter.go), and reads (read.go, top.go, and names.go).
// Which node of a cluster a command goes to is in node.go.
//
// # What can go wrong
//
// Every error of a commit means "unknown": the cursor in Redis is read again
// and decides. At the target the batch has been applied; at the old place it is
// sent again; anywhere else the caller learns that it was fenced by another
// worker (ErrFenced) or that Redis lost commits (ErrRewound), drops the batch
// and reads the stream again from the cursor.
package window
