// Package window is the arithmetic of rolling windows: how hits become cells of tiers, and how cells become
// totals with two bounds. It takes moments and bytes, and returns values: no Redis, no clock, no goroutine.
// Read docs/design.md first.
//
// A hit belongs to exactly one cell of each tier that still holds its time, or to one cell of a sparse log.
// A Layout has the tiers and shards of a namespace. A Batch adds up hits per counter and time, and divides
// into a ShardBatch per shard. A Plan has the hashes that a question needs, and turns their cells into an
// Estimate; the truth is always between its bounds. Cursor is how far a stream has been counted.
//
// The packages below it reach Redis. None of them imports one that stands further down:
//
//	cluster   one server, Sentinel or Redis Cluster: which node, ordered reads, WATCH, replies, errors
//	schema    a namespace: keys, layout record, cursors, list of streams, claims
//	commit    Writer: a batch and its cursor in one transaction
//	read      Reader: totals, series, top, names, uniques, exports
//	erase     removes counters              retier   changes the tiers
//	inspect   reads every key of a namespace, to compare it with the streams
//
// commit and read know nothing of each other, nor do erase, retier and inspect.
package window
