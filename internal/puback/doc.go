// Package puback reads what JetStream answers to a published message, and finds out which
// stream takes a subject.
//
// # What it promises
//
// An Answer is about one send. A refusal says that this send was not stored; an earlier send of the
// same message may have been. A reply that is not JetStream's is no Answer.
package puback
