// Package commit adds a batch to the counts and moves the cursor in one Redis transaction, so a stored hit
// counts exactly once, whatever crashes.
//
// Every error of a commit means "unknown", so the Writer reads the cursor again. At the target, the batch was
// applied. At the old position, the Writer sends it again. Anywhere else, another worker has fenced the
// caller off (ErrFenced), or Redis has lost commits (ErrRewound): the caller drops the batch and reads the
// stream again from the cursor. If another program has written to a key, Commit.Failed names that key.
package commit
