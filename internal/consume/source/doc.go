// Package source reads the messages of a JetStream stream in order, and its state. Start with source.go.
//
// A Feed delivers messages from a sequence on. It acknowledges nothing, because the position is in Redis with
// the counts. Anything unexpected, such as silence, a reconnect or an unknown status, ends it: it calls lost
// once, and no later delivery can be trusted.
//
// A stream's State may come from a deposed leader that has not noticed. Confirmed returns a State only from a
// leader that a majority has followed since. State.At is a moment before which nothing was stored that the
// state lacks, even if the stream copies others.
package source
