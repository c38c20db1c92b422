// Package counts publishes what limits decide as hits of counters (docs/limits-counters.md).
//
// Add adds up, and one goroutine publishes what was added up for at most a second, as messages of many hits,
// each with a Nats-Msg-Id. It connects to NATS when there is something to publish, and not before.
//
// # What it promises
//
//   - Add never waits for NATS, and no decision fails by it.
//   - While NATS is away, or no stream takes the subject, hits stay added up per counter. Beyond MaxCounters
//     they are dropped, which a metric and a log line report.
//   - No hit counts twice: a message that may be stored is sent again only while its stream remembers its id.
//   - The function that Start returns sends what is added up, and waits for at most two seconds.
//
// A process that is killed loses what it had not sent.
package counts
