// Package window is time and storage: how hits become cells of Redis hashes,
// and how cells become rolling totals.
//
// # What it promises
//
// A hit belongs to exactly one cell of each tier that still holds its time. A
// commit adds a batch of hits and moves the stream's cursor in one Redis
// transaction, so that a stored hit counts exactly once whatever crashes. An
// answer is an estimate with two bounds, and the truth is always between them.
//
// # A few types
//
// A worker makes a Layout of Tiers and opens the namespace (Store). It adds hits to
// a Batch. For each stream and shard a Writer commits the batch's share (ShardBatch)
// together with the Cursor that it leads to.
//
// A Reader answers questions: Answer (totals), Series, Top and Names. Layout.Plan
// chooses the tier that answers.
//
// # Where to find what
//
// Without Redis:
//
//   - durations and tiers (duration.go, tier.go); cells, epochs and deadlines
//     (epoch.go); the layout that maps counters to shards (layout.go)
//   - the batch that coalesces hits (batch.go), how it is split into several
//     transactions (split.go), and what a transaction changes (changes.go, expiry.go)
//   - the time that a question is about (span.go), its plan (plan.go), and estimates
//     of Redis's clock (clock.go)
//   - summaries of the counters with most hits in a segment of time (summary.go,
//     segment.go)
//   - the names of keys, which are made in keys.go alone
//
// With Redis:
//
//   - the layout record (store.go, layout.go) and the list of streams (streams.go)
//   - claims about streams at rest (idle.go)
//   - the cursor (cursor.go) and the commit: what it means to its caller (commit.go),
//     the transaction (transact.go) on the connection that watches the cursor
//     (watched.go), with the summaries and names that it writes (top.go, names.go)
//   - the removal of counters (erase.go)
//   - reads: what a reader caches (directory.go); what plans need (fetch.go), the round
//     trip that reads it (trip.go) and that several questions share (gather.go), its
//     replies (reply.go), and what a question finds in them (reader.go, fetch.go,
//     snapshot.go, progress.go); questions about all counters (survey.go, top.go, names.go, export.go)
//   - which node of a cluster a command goes to (node.go)
//
// # What can go wrong
//
// Every error of a commit means "unknown", so the writer reads the cursor in Redis again, and the
// cursor decides. If it is at the target, the batch has been applied. If it is at the old place, the
// writer sends the batch again. If it is anywhere else, the caller learns that another worker has
// fenced it off (ErrFenced) or that Redis lost commits (ErrRewound). It then drops the batch and reads
// the stream again from the cursor.
//
// If another program has written to a key, a ForeignError names that key.
package window
