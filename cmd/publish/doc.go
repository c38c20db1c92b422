// Command publish reads hits from standard input, or generates a synthetic load, and publishes them to
// JetStream in batches: several hits in one message.
//
// Every hit that was read is stored exactly once: a message is sent under the same Nats-Msg-Id until
// JetStream acknowledges it, and JetStream drops what it has already stored. It remembers ids for the
// stream's duplicate window, by default two minutes. If an acknowledgement is outstanding for longer, the
// message can be stored twice, and the log says so.
//
// It waits, without losing anything, for NATS, the stream, and room in it. Memory is bounded: reading stops
// while the window of unacknowledged messages is full. Only --rebase holds its whole input. The data's way
// through the files:
//
//	feed.go       standard input in chunks, cut into lines
//	combined.go   a line becomes a hit (hit objects are parsed by internal/hit)
//	rebase.go     the whole log shifted in time, if asked for
//	pace.go       held back to the log's own pace, if asked for
//	synthetic.go  or made-up hits, in place of all of the above
//	batch.go      hits become message bodies
//	main.go       what is stored (internal/outbox sends), and the last line
package main
