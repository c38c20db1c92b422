// Rls answers Envoy's global rate limit protocol: Envoy asks it about each request, and the limits of a file
// decide, whose hits are in Redis. It is a Go module of its own, because gRPC and Envoy's messages bring many
// others along.
//
//	Envoy ─gRPC─▶ server (bounds, TLS) ─▶ answer (one request) ─▶ mapping (to limits) ─▶ limit ─▶ Redis
//
// Its promises:
//
//   - internal/limit decides about Envoy's requests as about takes over HTTP, with the same keys in Redis.
//   - All limits that a request matches are counted, or none; if they are more than one script decides about,
//     in steps (docs/limits.md). Of the limits that match a descriptor, those with the most specific one
//     decide (mapping.go).
//   - Envoy lets a request through on an error, so no client can cause one: a value of any length has a key;
//     hits that no limit can allow at once are over the limit, and so are closed limits while Redis is away
//     (answer.go). Only Envoy's settings can cause errors. Hits that have happened cause none at all, and
//     each limit counts what it can of them.
//   - What a process holds is bounded: connections, requests on each, and bytes of each (server.go).
//
// If Redis does not decide within RLS_TAKE_TIMEOUT, the limit's fail mode does. If Envoy's own timeout is
// shorter, its failure mode has decided by then; the hits may have been counted. A bad file of limits keeps
// the program from starting, and changes nothing when it is reread.
//
// --translate prints files of envoyproxy/ratelimit as a file of limits, and refuses what would limit less
// (translate.go). It needs no servers.
//
// run waits for all goroutines: the gRPC server's (server.go: workers), two of health.go (a check of Redis
// every second, and gRPC's health service), the rereading of files, the server for /healthz, /readyz and
// /metrics, and last the one that publishes what limits decide (limit/counts).
package main
