// Package outbox publishes messages to JetStream, many at a time, and does not wait for each acknowledgement.
//
// # What it promises
//
// A Box keeps each message until it is known what became of it, and sends it again under the same Nats-Msg-Id: after
// a new connection within 50 ms, without an answer after 5 seconds, after a refusal after 250 ms. JetStream drops what
// it has already stored for as long as it remembers the id, two minutes unless the stream says otherwise. Before a
// message that may be stored goes out again, its owner is asked, and learns how old its first send is.
//
// A message is stored once JetStream says so, and not before. It is certainly not stored only if JetStream has refused
// every send of it, or nothing of it has left this process. A reply that is not JetStream's says nothing.
//
// The client's own PublishMsgAsync cannot do this: its future ends at the first answer, timeout or lost connection, so
// a later answer to the same message is lost, and with it whether every send of it was refused.
//
// A Sender is a Box with a goroutine for programs that have all the time there is. It sends every message until it is
// stored, and waits for the stream and for room in it. Memory is bounded: Submit waits while 256 messages or 32 MiB are
// unacknowledged. If a message may have been stored for longer than two minutes when it is sent again, it can be
// stored twice; the log says so when it happens. That cannot happen to a message with a Once: the stream takes it only
// as the first on its subject, and the Sender tells its fate even if that is a refusal.
//
// Order is not kept: a message that is sent again comes behind later ones.
//
// Taker finds out which stream takes a subject, without storing anything.
//
// # The files
//
//	answer.go  what JetStream says to a message
//	box.go     messages, their sends and their answers; one goroutine owns it
//	sender.go  batches of hits, in a goroutine of its own
//	taker.go   which stream takes a subject
package outbox
