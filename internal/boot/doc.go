// Package boot has what the programs share at their edges: reading
// settings from the environment and printing their help, logging, progress on a
// terminal, connecting to NATS and Redis, serving HTTP, and turning an error
// into an exit code.
//
// Programs read their settings once, with this package. Every other package takes plain values.
package boot
