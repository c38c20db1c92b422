// Package hit defines what a hit is: which message bodies carry hits, what a counter
// may be called, how many a hit may count, which times it may have, and why a hit
// is refused. Workers use it to decode messages, publish to read and write hits, and query to
// check the names of counters.
//
// # What it promises
//
// It is pure: no clock, no server. What Decoder makes of a message depends on the
// message, the time at which a stream stored it, and the limits. A replay decides
// the same.
//
// If Parser accepts a hit (Parse one object, ParseBody all objects of a body) and Hit.AppendJSON writes it, Decoder reads the same counter,
// number and time. Decoder refuses such a hit only for reasons that the producer
// cannot know: its time is too far from the time at which it was stored, or the message
// carries too many hits.
//
// # A message
//
// White space is what JSON calls white space: space, tab, carriage return and line feed.
// The first byte that is not white space decides the form:
//
//   - nothing: one hit;
//   - '{': one object, which may stretch over several lines, or an object per line;
//     blank lines count for nothing;
//   - '[': an array of objects, which may be empty;
//   - anything else, including a byte-order mark, is refused.
//
// Each object, line or element stands for itself: a bad one does not spoil the others. Anything
// after an array is refused as one more item. If a message has more hits than
// Limits.MaxHits, the whole message is refused.
//
// # An object
//
// All fields may be missing. If a field occurs more than once, the last one counts, but the
// others must not have the wrong type or, for n, be out of range.
//
//   - key, a string: the counter. If it is missing, the message's subject names the
//     counter. CheckName says which names are allowed. Half of a surrogate pair, written
//     as an escape such as \ud83d, is refused: two names would become one.
//   - n, an integer from 1 to MaxN, without fraction or exponent. If it is missing, 1.
//   - ts, the time: an integer of Unix milliseconds, without fraction or exponent, or
//     a string that ParseTime reads. It must lie in the years 1 to 9999. If it is
//     missing, the time at which the message was stored.
//   - unique, a string that CheckUnique takes: whom or what the hit is of, such as a visitor.
//     Different ones are counted per counter, beside the hits. If it is missing, the hit
//     counts among the hits alone. What is wrong with it is told without its value.
//   - Key, N, count, value, time, timestamp, Unique, uniques and uniq are refused: somebody
//     meant one of the fields above, and the hit would count wrongly.
//   - Other fields are skipped, whatever they hold. They must be JSON, but their names and
//     strings may hold bytes that are not UTF-8.
//
// If a hit's time is later than the time at which the message was stored, by at most
// Limits.MaxAhead, the hit counts at the time at which it was stored.
//
// # What can go wrong
//
// Nothing fails. What cannot be counted becomes a Reject with a Reason (Reasons lists them
// all), a sentence for people, and its bytes unchanged. If several things are wrong with
// an object, the Reject names the first of these: it is not JSON; a field (the first bad
// one) is of the wrong type, out of range or a slip; the counter's name; the time.
package hit
