// Package redrive publishes again what workers have refused: the program redrive.
//
// A refused hit counts once, however often it runs, and whichever process is killed, paused or started twice.
// The state is in the streams alone. A refused hit's name becomes its own subject, on which the stream takes
// only a first message. A reject is removed once its message is certainly stored: acknowledged, or seen in
// the stream after it refused another. So a run that finds the reject of a killed one sends it, is refused,
// and removes it. That holds as long as the stream holds the first message; docs/delivery.md lists the cases,
// and what is not promised.
//
// redrive.go draws the path of a reject.
package redrive
