// Package access says who may ask and count what: tokens with rights, with the counters that they are about, and with an end.
//
// # What it promises
//
//   - A token opens the routes of its rights, and no others.
//   - A token with prefixes is about the counters that begin with one of them. A Reader answers no question about
//     another counter, and keeps lists and sums to those that the token is about.
//   - A question that names a counter or a prefix outside of them is refused with 403, whether there is such a counter
//     or not. A list that names none is about the token's counters.
//   - Requests are compared with every token, by hashes and in constant time.
//   - A file of tokens that is wrong changes nothing.
//
// # When it acts
//
// The file is read again with the program's others (boot.Files). A token that is gone from it or has another meaning in it,
// and one whose time is over, ends what its bearer has under way and may last.
package access
