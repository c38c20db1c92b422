// Package boot is what the four programs share at their edges: reading
// settings from the environment and printing their help, logging, progress on a
// terminal, connecting to NATS and Redis, serving HTTP, and turning an error
// into an exit code.
//
// Settings are read once, here; every other package takes plain values.
package boot
