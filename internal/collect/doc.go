// Package collect takes hits and CloudEvents over HTTP and publishes them to NATS JetStream. docs/collect.md
// is for clients.
//
//   - 202 means that JetStream has stored all of the request, 504 that this is unknown, any other status that
//     nothing of it is stored.
//   - What is stored is stored once: a message is only resent under the same Nats-Msg-Id, and while the
//     stream certainly remembers that id.
//   - A client can repeat a request with an Idempotency-Key until there is an answer, and a single CloudEvent
//     without one, because source and id identify it. If either was used for something else, the answer is
//     422.
//   - Workers count every accepted hit, unless its time is wrong. An accepted CloudEvent has the required
//     attributes; what it counts is decided by rules that this package does not have.
//   - Memory is bounded, whatever clients send. Every error is a *web.Problem; a bad body has up to maxErrors
//     items.
//
// Hits of simultaneous requests share a message: they gather while another is under way, at most for
// COLLECT_MAX_WAIT. A request with a key or CloudEvents is a message of its own, with its body unchanged, and
// an event's headers as the binding for NATS encodes them.
//
//	publisher.serve   owns the messages under way and the group that gathers
//	target.watch      owns the last check of the stream
//	a request         owns its workspace, its hold on memory, and its entry except within publisher.store
//
// The files, from the wiring down to what it uses: run.go, openapi.go, pages.go, hits.go, events.go, body.go,
// store.go, publisher.go, target.go, entry.go, problems.go, metrics.go.
package collect
