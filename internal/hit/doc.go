// Package hit defines hits: which message bodies carry them, and which names, numbers and times they may
// have. It is pure: Decoder's result depends only on the message, its time stored, and the limits. A replay
// decides the same.
//
// If Parser accepts a hit and Hit.AppendJSON writes it, Decoder reads the same counter, number and time. It
// refuses such a hit only for reasons unknown to the producer: its time is too far from the time stored, or
// the message has too many hits.
//
// # A message
//
// A byte-order mark at the beginning is no part of the body. The first byte after it that is not JSON white
// space (space, tab, carriage return, line feed) decides the form:
//
//   - no such byte: one hit;
//   - '{': one object, which may span lines, or an object per line; blank lines count for nothing;
//   - '[': an array of objects, which may be empty;
//   - anything else is refused, such as a byte-order mark alone.
//
// A bad object, line or element does not spoil the others. Anything after an array is refused as one more
// item. A message with more than Limits.MaxHits hits is refused as a whole.
//
// # An object
//
// All fields may be missing. If a field is repeated, the last one counts, but the others must not have the
// wrong type or, for n, be out of range.
//
//   - key, a string: the counter, by default the message's subject. CheckName says which names are allowed.
//     Half of a surrogate pair, escaped as in \ud83d, is refused: two names would become one.
//   - n, an integer from 1 to MaxN, without fraction or exponent; by default 1.
//   - ts, the time: an integer of Unix milliseconds, without fraction or exponent, or a string that ParseTime
//     reads, in the years 1 to 9999; by default the time stored. A later time, by at most Limits.MaxAhead,
//     counts as the time stored.
//   - unique, a string that CheckUnique accepts, such as a visitor: unique values are counted per counter,
//     in addition to the hits. Errors do not contain the value.
//   - all, true or false: whether the sum of all hits has the hit; by default true.
//   - The Mistakes of Fields, such as count, are refused, because the hit would count wrongly.
//   - Other fields are skipped. They must be JSON, but their names and strings need not be UTF-8.
//
// What cannot be counted becomes a Reject with a Reason, a human-readable sentence, and its bytes unchanged.
// Of several errors it names the first of: not JSON; a field (the first bad one); the counter's name; the
// time.
package hit
