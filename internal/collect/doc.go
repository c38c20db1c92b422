// Package collect takes hits and CloudEvents over HTTP and publishes them to NATS JetStream. docs/collect.md describes it
// for those who send them.
//
// # What it promises
//
//   - 202 means that JetStream has stored all of the request. Any other status but 504 means that nothing of it is stored.
//     504 means that this is not known.
//   - What is stored once is stored once only: a message is sent again under the same Nats-Msg-Id, and only while the
//     stream knows that id for certain.
//   - A client can send a request with an Idempotency-Key again until there is an answer, and a single CloudEvent without
//     one: its source and id tell it from all others. If either was used for something else, the answer is 422.
//   - A hit that is taken is one that workers count, but for its time. A CloudEvent that is taken has the attributes that
//     every CloudEvent has. What it counts, rules decide that this package does not know.
//   - Memory is bounded, however many clients there are and whatever they send.
//
// # When it acts
//
// Hits of requests that come together share a message: they gather while another message is under way, at most for
// COLLECT_MAX_WAIT. A request with a key, and a request with CloudEvents, is a message of its own, which has its body as
// it came, and the headers of an event as the binding for NATS encodes them.
//
// # What can go wrong
//
// Every error is a *web.Problem, whose detail names what was wrong and what is allowed. The body of a bad request is
// described item by item, up to maxErrors of them.
//
// # Who owns what
//
//	publisher.run   the messages under way and the group that gathers
//	target.run      what is known of the stream
//	tokens.run      the file of tokens
//	a request       its workspace and its hold on memory; its entry until that is submitted, and again when it is done
package collect
