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
