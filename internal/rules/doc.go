// Package rules turns events whose producers do not write hits into hits: which subjects of which streams
// carry them, where in their JSON the time, amount and names are, and on which counters an event counts.
// docs/rules.md describes the file.
//
// # What it promises
//
//   - It is pure. A Decoder's result depends on the rules' text, the message, the time at which a stream
//     stored it, and the limits, so a replay decides the same.
//   - All counters of all matching rules count an event, or none does. A reject has the event's bytes
//     unchanged.
//   - internal/hit decodes what no rule matches. Only CloudEvents are refused then (hit.NoRule).
//   - Different values never make one name because they are long or badly encoded: a long name is cut and
//     marked with its hash, and half of a surrogate pair is refused. But dots in values are kept, so adjacent
//     values can make the same name.
//   - Everything is bounded: the file (Max…), the hits of a message (hit.Limits), and a Decoder's memory.
//
// # An event
//
// hit.Splitter takes a message apart: an object, several line by line, or an array of objects, each an event.
// With the format none, and in the binary mode of CloudEvents, the message is one event.
//
// Per rule, in the order of the file, come its conditions; then, with each, the same for every element; its
// time; its counters: name, amount, time against limits. The first error rejects the event. What a condition
// leaves out need not be valid, but the event's JSON must be. A message with more events than
// hit.Limits.MaxHits, or more hits on all counters together, is rejected as one.
//
// An event is unmet if it had no error, nothing counted it, and a condition was why. So an event that one of
// several rules for different values counts is not unmet.
//
// Paths are written as in gjson, without wildcards, queries, modifiers and multipaths, because with those the
// cost of an event would be hard to bound. One pass finds all rules' values and checks the JSON (tree.go). Of
// a repeated field the last counts, as for a hit. Names are unescaped before comparison.
//
// Parse returns a *FileError with the line and what is allowed. Decode does not fail: what it cannot count
// becomes a hit.Reject, whose detail names the rule's line, the path and the value.
package rules
