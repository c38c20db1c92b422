// Package erase removes all that Redis has of some counters: hashes, logs, unique cells, names, and entries
// in summaries. It goes shard by shard, in transactions of a few counters each, each counter as a whole. A
// call that fails leaves the rest listed, for another call.
//
// Each transaction writes a new token (see NewErasure) to the key "erased" of its shard. Every writer
// watches that key and its cursor, and reads it in each check. This makes erasures and commits exclude each
// other:
//
//   - A writer sends no expiry and no name for a hash whose expiry it has set before, and no register that it
//     has updated before. It drops what it remembers when the token differs from the last one it read. An
//     EXEC that relies on it runs only if the token is unchanged, so nothing set under it has been erased
//     since. So no hash comes back without an expiry or unlisted, whichever worker reads the stream, and
//     whether or not it has a cursor or is listed. No token repeats, so even if Redis loses an erasure, the
//     next token differs.
//   - Both read a summary under what they watch, and change it in their transactions: a writer under its
//     cursor, an eraser under the cursors of all streams and the token. So neither overwrites the other. The
//     entry goes in the transaction that removes the cells, so the summaries count whatever a counter has in
//     its cells afterwards.
//   - A stream is listed before it has cursors. The commit that creates a cursor also changes the key, after
//     the token. An eraser reads the list after it has begun to watch. So it has all streams with summaries,
//     or its EXEC fails. (If Redis has lost a stream from the list alone, its summaries keep the entries.
//     They are then above the cells, and still bounds from above.)
//
// An eraser counts its transactions in "opened" and "closed" of the cursors, as commits do. If a torn
// append-only file runs the beginning of one again, it may remove later hits, and the next commit marks that.
//
// Redis without memory refuses every command inside MULTI. Then a script does the same work (erase.lua).
package erase
