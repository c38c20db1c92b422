// Package redrive publishes again what workers have refused: it is the program redrive.
//
// # What it promises
//
// A refused hit counts once, however often it runs, whoever is killed, paused or started twice. The state lies in the
// streams alone. A refused hit has a name, which becomes a subject of its own, and the stream takes a message there
// only if it is the first. A reject is removed once its message is certainly stored: acknowledged, or seen in the
// stream after it refused another. So a run that finds the reject of a killed one sends it, is refused, and removes
// it. That holds for as long as the stream holds the first message; docs/delivery.md lists the cases, and what is not
// promised.
//
// # The files
//
//	run.go      flags and settings, and the last line
//	walk.go     HITS_REJECTED is read, and parts become rejects (internal/rejects)
//	redrive.go  which of them go, and whether they can
//	remake.go   what is published: time and key of a hit
//	target.go   under which subject
//	finish.go   rejects whose messages are stored are removed
//
// internal/outbox sends the messages until their fate is known.
package redrive
