// Package outbox publishes messages to JetStream, many at a time, without waiting for each acknowledgement.
//
// A Box keeps each message until its outcome is known, and resends it with the same Nats-Msg-Id: within 50 ms
// after a reconnect, after 5 seconds without an answer, 250 ms after a refusal. JetStream drops repeats as
// long as it remembers the id, two minutes by default. Before a message that may be stored goes out again,
// its owner is asked, with the age of its first send.
//
// A message counts as stored once JetStream has acknowledged it. It is certainly not stored only if JetStream
// has refused every send of it, or nothing of it has left this process. Replies of others prove nothing. The
// client's PublishMsgAsync cannot do this: its future ends at the first answer, timeout or lost connection,
// and a later answer to the same message is lost.
//
// A Sender is a Box with a goroutine, for programs that can wait. It sends every message until it is stored,
// and waits for the stream and for room in it. Memory is bounded: Submit waits while 256 messages or 32 MiB
// are unacknowledged. If the first send was more than two minutes ago, the message can be stored twice, which
// is logged; not so with a Once, which the stream takes only as the first on its subject, and whose Outcome
// the Sender returns even if it is a refusal. Order is not kept.
//
// FindStream returns the stream that takes a subject, without storing anything.
package outbox
