// Package query answers questions about counters over HTTP and NATS. It joins the packages answer
// (questions), limitapi (takes), live (/v1/live), fresh (after, max_age and wait), status (/v1/streams,
// /v1/rejects, gauges, health) and web (server, problems). A new resource is a file of answer with its types
// and a method of answer.Service, its operation in operations.go, and a line in endpointsOf.
//
//   - Nothing is cached but the layout, the list of streams, and for a second the answers of status.
//   - Unknown parameters and fields are refused, so that a mistyped question is never answered as another
//     one.
//   - Only takes, resets and erasures change anything in Redis. The rest works with a read-only user.
//   - It listens at once and answers 503 while Redis or NATS does not answer. /healthz is about the process,
//     /readyz about Redis and the layout. A request waits for Redis for at most QUERY_TIMEOUT.
//   - Errors are RFC 9457 problems, whose detail says what was wrong and what is allowed. docs/settings.md
//     lists them.
//
// The files, from the wiring down to what it uses: run.go, settings.go, nats.go, openapi.go, middleware.go
// (hosts, origins, tokens and their rights), operations.go, erase.go and export.go (routes), page.go.
//
// Goroutines, all waited for by Run: Health.Run (checks Redis), Live.Run (reads for /v1/live), Watcher.Run
// (reads for questions that wait), Files.Follow (files that are read again), Server.Serve (listeners),
// natsAPI.serve (the connection, its endpoints, and a responder.dispatch per request), and the one that
// publishes what limits decide (limit/counts), which ends after the others. A take's late answer
// holds one connection for takes; limit.Limiter.Wait waits for it.
package query
