// Package source is what a worker reads: the messages of a JetStream stream, in order, and what the stream says
// about itself.
//
// # What it promises
//
// A feed (Feed) delivers the messages from a sequence on, one after the other. It acknowledges nothing, because the
// place up to which hits are counted stands in Redis. Whatever it did not expect, such as silence, a new connection or
// a status that it does not know, ends it: then it says so once (lost), and delivers nothing that can be trusted.
//
// A stream's State may come from a leader that was deposed and has not heard of it. Confirmed returns one only from a
// leader that a majority has followed since. State.At is a moment before which nothing was stored that the state lacks,
// also if the stream copies others.
//
// # Where to find what
//
//   - source.go: what a session needs of a stream. The simulation in internal/consume has a stream of its own
//   - jetstream.go: questions to a NATS server; mirror.go: what is known of the end of a stream that copies others;
//     confirm.go: which answers are believed
//   - pull.go: the feed, which asks for messages or has them pushed from another account; reply.go: where a message
//     is in its stream
package source
