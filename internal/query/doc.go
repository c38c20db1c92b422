// Package query answers questions about counters over HTTP and over NATS.
//
// # What it promises
//
//   - Nothing is cached but the layout, the list of streams, and for a second what /v1/streams, /v1/rejects and the
//     gauges of freshness tell.
//   - A mistyped question is never answered as if it were another one: unknown
//     parameters and fields are refused.
//   - HTTP and NATS give the same answers and the same problems. What those promise is in the rooms below.
//   - Only takes, resets and erasures change anything in Redis. Everything else works with a user who may only read.
//
// # When it acts
//
// It listens at once, whether Redis and NATS answer or not. A request waits for Redis
// for at most QUERY_TIMEOUT. When the service stops, it finishes the requests under way before it closes the connections to Redis.
//
// # What can go wrong
//
// What cannot be answered is refused with an RFC 9457 problem, whose detail says in
// one sentence what was wrong and what is allowed.
//
//	400, 404, 405, 413  the asker has to change the request
//	401                 the request needs a token
//	429                 too many exports are under way; a take that is refused
//	403                 the settings forbid takes, or erasures
//	409                 another number of counters than was confirmed
//	500                 something else has written to a key, which detail names;
//	                    or a fault of this service
//	501                 the request needs NATS, and NATS_URL is empty
//	503                 Redis or NATS cannot answer now, or /v1/live has no room:
//	                    Retry-After says when to ask again
//
// Redis may be away when the service starts, or at any time later: requests get 503
// until it is back. /healthz is about the process alone, /readyz about Redis and the
// layout.
//
// # Goroutines
//
//	goroutine            owns                                     who waits for it
//	Run                  the connections to Redis, for takes      the program
//	                     others than for questions
//	Health.Run           the looks at Redis                       Run
//	Live.Run             the reads for /v1/live                   Run
//	Gate.Run             the named limits                         Run
//	serveNATS            the connection to NATS, its endpoints    Run
//	responder.dispatch   one request over NATS, one slot          serveNATS (responder.wait)
//	Server.Serve         the listeners                            Run
//	a take's late answer one connection for takes                 limit.Limiter.Wait
//
// # The rooms
//
// This package joins them: run.go has the wiring, edge.go what every request passes, operations.go the HTTP side of
// internal/answer, export.go the answer that is a stream, erase.go the removal of counters, nats.go the same over NATS, and page.go the page at /, whose
// files are in the folder page: HTML, CSS and plain JavaScript, which ask this API and nobody else.
//
//	internal/answer   a question about counters in, an answer out
//	internal/gate     takes, looks and proxies' questions, about which internal/limit decides
//	internal/live     /v1/live
//	internal/status   /v1/streams, /v1/rejects, the gauges of freshness, and whether Redis is there
//	internal/web      the server, problems and origins; internal/web/api describes and reads requests
//
// A further resource is a file of answer with its types and its method of Desk, its operation in operations.go, and a
// line in service.endpoints.
package query
