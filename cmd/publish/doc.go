// Command publish reads hits from standard input, or generates a synthetic load, and publishes them to
// JetStream in batches: several hits in one message.
//
// Every hit that was read is stored exactly once: a message is sent under the same Nats-Msg-Id until
// JetStream acknowledges it, and JetStream drops what it has already stored. It remembers ids for the
// stream's duplicate window, by default two minutes. If an acknowledgement is outstanding for longer, the
// message can be stored twice, which is logged.
//
// It waits, without losing anything, for NATS, the stream, and room in it. Memory is bounded: reading stops
// while the window of unacknowledged messages is full. Only --rebase holds its whole input. The data's way
// through the files:
//
//	lines.go      standard input in chunks, cut into lines
//	feed.go       lines become hits, and go on into batches
//	combined.go   a line of an access log becomes a hit (internal/hit parses hit objects)
//	rebase.go     the whole log shifted in time, if asked for
//	pace.go       held back to the log's own pace, if asked for
//	synthetic.go  generated hits, in place of all of the above
//	batch.go      hits become message bodies
//	main.go       internal/platform/outbox sends the messages
//	report.go     what is stored, and the last line
package main
