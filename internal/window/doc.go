// Package window is time and storage: how hits become cells of Redis hashes, and how cells become rolling
// totals. Read docs/design.md first.
//
// A hit belongs to exactly one cell of each tier that still holds its time. A Writer commits a batch
// (ShardBatch) and the stream's Cursor in one Redis transaction, so a stored hit counts exactly once whatever
// crashes. A Reader's answer is an estimate with two bounds, and the truth is always between them.
//
// Every error of a commit means "unknown", so the writer reads the cursor again. At the target, the batch was
// applied. At the old position, the writer sends it again. Anywhere else, another worker has fenced the
// caller off (ErrFenced), or Redis has lost commits (ErrRewound): it drops the batch and reads the stream
// again from the cursor. If another program has written to a key, a ForeignError names that key.
package window
