// Package query answers questions about counters over HTTP and over NATS.
//
// # What it promises
//
// An answer is read from Redis at the moment it is asked for, totals in one round trip;
// nothing is cached but the layout and the list of streams. Every total comes
// with bounds, and every answer with the moment up to which it is whole (as_of).
//
// What cannot be answered is refused with an RFC 9457 problem whose detail says
// in one sentence what was wrong and what is allowed: 400, 404, 405 and 413 are
// the asker's to mend, 401 asks for a token, 503 with Retry-After means that
// Redis cannot answer now, and 500 names a key that something else has written.
// What time it is, is Redis's to say, never this machine's. A question that was mistyped is never answered as if
// it were another one: unknown parameters and fields are refused.
//
// # The parts
//
// Pure: moments (moment.go), and how a request becomes questions for a
// window.Reader (question.go). HTTP: the edge that every request passes
// (edge.go, body.go, params.go, token.go, cors.go, problem.go), one file for each
// resource (total.go, series.go with format.go, csv.go and chart.go, top.go, counters.go,
// live.go), the description of it all (openapi.go, docs.go). NATS: request.go. The state of
// Redis is watched by one goroutine (health.go), another reads for all who listen
// (hub.go); run.go ties it together.
//
// A further resource is a file with its types, its operation and its handler,
// and a line in service.routes.
//
// # What can go wrong
//
// Redis may be away when the service starts or at any time later: it listens
// anyway, answers 503 within answerTimeout, and answers again as soon as Redis
// does. /healthz is about the process alone, /readyz about Redis and the layout.
package query
