// Package status answers about the service itself: how far and by whom the streams are counted, what workers
// have refused, and whether Redis is there.
//
//   - Redis and NATS are asked at most once per second, however many clients ask (recent).
//   - The gauges of freshness continue when every worker is dead, and grow while Redis does not answer.
//   - Health.Run, whose caller waits for it, checks every half second, and at once after a failure, whether
//     Redis answers and has a layout. Each change is logged once.
//   - Without NATS_URL, what needs NATS is answered 501; while NATS does not answer, 503.
package status
