// Package boot has what all programs need at their edges: settings and their help, logs, progress on a
// terminal, connections to NATS and Redis, an HTTP server, and exit codes. Programs read their settings once,
// with this package. Every other package takes plain values.
package boot
