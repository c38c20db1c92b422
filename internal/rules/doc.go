// Package rules decides what events count whose producers do not write hits: which subjects of
// which streams carry them, where in their JSON the time, the amount and the names are, and on
// which counters one event counts. docs/rules.md describes the file.
//
// # What it promises
//
//   - It is pure: no clock, no server. What a Decoder makes of a message depends on the rules' text, the
//     message, the time at which a stream stored it, and the limits, and not on earlier messages. A replay
//     decides the same.
//   - An event is counted wholly or rejected wholly: by all counters of all rules that match, or by none. Its
//     reject has its bytes unchanged.
//   - What no rule matches is decoded by internal/hit. Only CloudEvents are refused then (hit.NoRule).
//   - Two different values never become one name because they are long or badly encoded: a long name is cut and
//     marked with its hash, and half of a surrogate pair is refused. Dots in values are kept, so
//     values that stand next to each other can still make the same name.
//   - Everything is bounded: the file and what is in it (Max…), the hits of a message (hit.Limits), the subjects
//     and plans that a Decoder remembers, and the memory that it keeps for long values.
//
// # An event
//
// A message is a JSON object, several line by line, or an array of objects, as hit.Splitter takes it apart; each
// object is an event. With the format none, and in the binary mode of CloudEvents, the message is one event.
//
// For each rule, in the order of the file: its conditions; then, with each, the same for every element; its time; its
// counters one by one: name, amount, time against limits. The first thing that is wrong rejects the event. What
// a condition leaves out need not be right, but the JSON of an event must be.
//
// An event is unmet if nothing counted it, nothing was wrong, and a condition of some rule, or for some element,
// was why. So rules for different values of the same field do not make an event unmet that one of them counts.
//
// A message with more events than hit.Limits.MaxHits, or with more hits on all counters together, is
// rejected as one.
//
// # Paths
//
// They are written as in gjson, without wildcards, queries, modifiers and multipaths, which would make it hard to say
// what an event costs. All values that the rules of a message need are found in one pass, which checks the JSON, too
// (tree.go). If a field is there twice, the last one counts, as for a hit. Names of fields are compared after their
// escapes are undone.
//
// # What can go wrong
//
// Parse returns a *FileError that names the line and what is allowed. Decode does not fail: what it cannot count
// becomes a hit.Reject, whose detail names the rule by its line, the path and the value.
//
// # The parts
//
//	file.go, rule.go, counter.go
//	                     YAML to rules
//	path.go, template.go paths, and the keys that have them
//	subject.go           subjects with wildcards, globs
//	match.go, plan.go    the rules of a subject, and what they need of its events
//	tree.go, value.go    values at paths
//	decode.go, count.go  messages to hits and rejects
//	cloudevent.go, binary.go
//	                     CloudEvents in JSON and in headers
//	check.go             whether something is a CloudEvent, for those who publish it
package rules
