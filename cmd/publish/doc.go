// Command publish reads hits from standard input, or makes a synthetic load, and publishes
// them to JetStream in batches: several hits in one message.
//
// It promises that every hit that was read is stored exactly once: a message
// keeps its Nats-Msg-Id however often it is sent, it is sent until JetStream
// acknowledges it, and JetStream drops what it has already stored. JetStream
// remembers ids for the stream's duplicate window (two minutes unless the
// stream says otherwise). If a message may have been stored and its
// acknowledgement is outstanding for longer than that, it can be stored twice;
// the log says so when it happens.
//
// It waits, without losing anything, for NATS, for the stream and for room in
// it. Memory stays bounded meanwhile: reading stops when the window of
// unacknowledged messages is full. Only --rebase holds its whole input.
//
// The data's way through the files:
//
//	feed.go       standard input in chunks, cut into lines
//	combined.go   a line becomes a hit (hit objects are parsed by internal/hit)
//	rebase.go     the whole log shifted in time, if asked for
//	pace.go       held back to the log's own pace, if asked for
//	synthetic.go  or made-up hits, in place of all of the above
//	batch.go      hits become message bodies
//	main.go       what is stored (internal/outbox sends), and the last line
package main
