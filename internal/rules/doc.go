// Package rules counts events that are not hits. A rules file says which subjects of which streams carry
// them, where in their JSON the time, amount and names are, and on which counters an event counts.
// docs/rules.md describes the file.
//
// # What it promises
//
//   - It is pure. A Decoder's result depends on the rules' text, the message, the time at which a stream
//     stored it, and the limits. So a replay has the same result.
//   - All counters of all matching rules count an event, or none does. A reject has the event's bytes
//     unchanged.
//   - internal/hit decodes messages that no rule matches, except CloudEvents, which get hit.NoRule.
//   - Distinct values never make the same name because they are long or badly encoded: a long name is cut
//     and marked with its hash, and half of a surrogate pair is refused. But dots in values are kept, so
//     adjacent values can make the same name.
//   - Everything is bounded: the file (Max…), the hits of a message (hit.Limits), and a Decoder's memory.
//
// # An event
//
// The way of an event. Each step returns to Decoder, which keeps the hits and rejects:
//
//	Decoder     decode.go      asks for the plan of a message, and for its events one by one
//	matcher     matcher.go     finds the rules that match a subject: a plan, and the parts that they use
//	plan        plan.go        reads an event; of CloudEvents, cloudEvent reads attributes and data
//	cloudEvent  cloudevent.go  (header.go has the headers, in binary mode)
//	tree        tree.go        keeps the values at the rules' paths until the next event
//	hitBuilder  hits.go        makes the hits of these values
//
// hit.Splitter splits a message into events: an object, several line by line, or an array of objects. With
// the format none, and in the binary mode of CloudEvents, the message is one event.
//
// The rules apply in the order of the file. Per event, or per element of each, hitBuilder checks the
// conditions, reads the time, and then builds every counter's hit. The first error rejects the event. An
// event that a condition skips need not be valid, but its JSON must be. If a message has more events than
// hit.Limits.MaxHits, it is rejected as one.
//
// An event is unmet if it had no error, no counter counted it, and a condition was the reason.
//
// Paths have gjson's syntax without wildcards, queries, modifiers and multipaths, with which the cost of an
// event would be hard to bound. One pass finds all rules' values and checks the JSON (tree.go). Of a repeated
// field the last counts, as for a hit. Names are unescaped before comparison.
//
// Parse returns a *FileError with the line and what is allowed. Decode does not fail: an event that it cannot
// count becomes a hit.Reject, whose detail names the rule's line, the path and the value.
package rules
