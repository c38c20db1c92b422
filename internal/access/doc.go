// Package access decides who may ask and count what, by tokens with rights, an optional end, and optional
// prefixes.
//
//   - A token opens the routes of its rights, and no others.
//   - A token with prefixes is about the counters that begin with one of them. Package scope refuses a
//     question that names another counter or prefix with 403, whether it exists or not. Lists and sums that
//     name none are about the token's counters.
//   - Requests are compared with every token, by hashes and in constant time.
//   - The file is reread with the program's others (setting.Files). A bad file changes nothing. If a token is
//     removed, changed or expired, its bearer's lasting requests end.
package access
