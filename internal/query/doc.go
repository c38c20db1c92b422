// Package query answers questions about counters over HTTP and over NATS.
//
// # What it promises
//
//   - An answer is read from Redis when it is asked for. Nothing is cached but the
//     layout, the list of streams, and for a second what /v1/streams, /v1/rejects and
//     the gauges of freshness tell. Totals take one round trip.
//   - Every total comes with bounds, every answer with the moment up to which it is
//     whole (as_of). A window that reaches far beyond that moment has no upper bound.
//     Now is what Redis's clock says, never this machine's.
//   - A mistyped question is never answered as if it were another one: unknown
//     parameters and fields are refused.
//   - HTTP and NATS give the same answers and the same problems.
//   - Only takes and resets change anything in Redis. Everything else works with a user who may only read.
//
// # When it acts
//
// It listens at once, whether Redis and NATS answer or not. A request waits for Redis
// for at most Timeout. Listeners at /v1/live cost one pipelined read every
// readEvery, however many they are, and nothing while there are none. When the service
// stops, it finishes the requests under way before it closes the connections to Redis.
//
// # What can go wrong
//
// What cannot be answered is refused with an RFC 9457 problem, whose detail says in
// one sentence what was wrong and what is allowed.
//
//	400, 404, 405, 413  the asker has to change the request
//	401                 the request needs a token
//	403                 the settings forbid takes
//	500                 something else has written to a key, which detail names;
//	                    or a fault of this service
//	501                 the request needs NATS, and NATS_URL is empty
//	503                 Redis or NATS cannot answer now, or /v1/live has no room:
//	                    Retry-After says when to ask again
//
// A refused take is an answer with the status 429, whose body is a decision and a problem at once. If Redis does not decide about a
// take within QUERY_TAKE_TIMEOUT, the limit's fail mode does. A bad file of limits keeps the program from
// starting. Read again at SIGHUP, it changes nothing.
//
// Redis may be away when the service starts, or at any time later: requests get 503
// until it is back. /healthz is about the process alone, /readyz about Redis and the
// layout. If a client of /v1/live does not read, it misses all but the latest news of each
// question, and the service drops it after writeTimeout.
//
// # Goroutines
//
//	goroutine            owns                                     who waits for it
//	Run                  the connections to Redis, for takes      the program
//	                     others than for questions
//	health.run           looks at Redis, what they found          Run
//	hub.run              the reads for /v1/live; it tells the     Run
//	                     listeners under hub.mu
//	limits.run           the named limits, which requests load    Run
//	serveNATS            the connection to NATS, its endpoints    Run
//	responder.dispatch   one request over NATS, one slot          serveNATS (responder.wait)
//	boot.Serve           the listener; another one with           Run
//	                     QUERY_METRICS_ADDR
//	freshness.Collect    two reads for a scrape                   the handler of /metrics
//	a take's late answer one connection for takes                 limit.Limiter.Wait
//	a handler of HTTP    one request; at /v1/live one listener    boot.Serve, for five seconds
//
// # The parts
//
// What a request says is an input (input.go). It is checked and becomes periods and
// questions for a window.Reader. What the reader found becomes an answer, a problem
// (problem.go), or news for a listener.
//
// HTTP: the edge that every request passes (edge.go, body.go, cors.go), how a resource is described and routed
// (route.go), its parameters (params.go) and its answer (output.go, json.go), and one file for each
// resource: total.go (with totaljson.go), series.go (with format.go, csv.go,
// and the chart in chart.go, plot.go, legend.go, label.go, ticks.go), top.go,
// counters.go, about.go, live.go (with hub.go and listener.go), streams.go, rejects.go (with rejectlist.go; both ask NATS
// through jetstream.go, and look at most once per second: recent.go). For Prometheus: probe.go,
// metrics.go, freshness.go, metricsaddr.go. openapi.go describes it all, with
// internal/web, which also has the problems and the pages. page.go serves the page at /, whose files are in the folder page: HTML, CSS and plain
// JavaScript, which ask this API and nobody else. Limits (internal/limit decides): take.go, limit.go,
// judge.go, and authz.go with forwarded.go and networks.go for proxies. limits.go has the named limits,
// takeitem.go checks what a request says, ratelimit.go writes the fields, limiterror.go the problems.
// NATS: nats.go, responder.go. Redis: redis.go, health.go. run.go and service.go tie it together.
//
// A further resource is a file with its types, its operation and its find function,
// a line in service.routes, and one in service.endpoints.
package query
