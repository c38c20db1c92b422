// Rls answers Envoy's global rate limit protocol: Envoy asks it about each request, and the limits of a file decide, whose
// hits are kept in Redis. It is a module of its own, because gRPC and Envoy's messages bring many others with them.
//
//	Envoy ─gRPC─▶ server (bounds, TLS) ─▶ answer (one request) ─▶ mapping (descriptor to limits) ─▶ limit ─▶ Redis
//
// # What it promises
//
//   - A request of Envoy's is decided as a take over HTTP is, by internal/limit, and both count in the same keys of Redis.
//   - All limits that a request matches are counted, or none; more than one script decides about, in steps
//     (docs/limits.md). Of limits that match a descriptor, those with the most specific descriptor decide (mapping.go).
//   - Nothing that a client of Envoy's can write into its request makes an error of it: Envoy lets requests through if it
//     gets one. A value of any length has a key, hits that no limit can allow at once are over the limit, and so are the
//     limits that are closed while Redis is away (answer.go). Errors are for requests that only Envoy's settings can make.
//   - What one process holds is bounded: connections, requests on each, and bytes of each (server.go).
//
// # What can go wrong
//
// If Redis does not decide within RLS_TAKE_TIMEOUT, the limit's fail mode does. If Envoy waits for a shorter time, it is
// gone by then, and its own failure mode has decided; the hits may have been counted. A bad file of limits keeps the
// program from starting, and changes nothing if it is read again.
//
// # Goroutines
//
// run waits for all of them: those of the gRPC server (server.go: workers), one that looks at Redis every second, one that
// tells health (health.go), one that reads files again, and the server for /healthz, /readyz and /metrics.
package main
