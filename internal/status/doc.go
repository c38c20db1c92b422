// Package status answers about the service itself: how far the streams are counted and by whom, what workers have refused,
// and whether Redis is there.
//
// # What it promises
//
//   - Redis and NATS are asked at most once per second, however many clients ask (recent).
//   - The gauges of freshness go on when every worker is dead, and grow while Redis is away.
//   - Health finds whether Redis answers and has a layout, from a look every half second, or at once if something failed.
//
// # What can go wrong
//
// Without NATS_URL, what needs NATS is answered 501; while NATS does not answer, 503. The log has each change of what a
// look at Redis has found, once.
//
// # Goroutines
//
//	goroutine            owns                             who waits for it
//	Health.Run           the looks at Redis               its caller
//	freshness.Collect    two reads for a scrape           the handler of /metrics
package status
