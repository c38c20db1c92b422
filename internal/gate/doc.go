// Package gate is the HTTP edge of limits: it reads takes from requests, has internal/limit decide, and writes decisions.
//
// # What it promises
//
//   - Hits of several takes are counted all or none, and refused hits are not counted.
//   - A look counts nothing. About a counter of the streams it goes by the counter's rolling total (look.go).
//   - A proxy asks about a request of its own client (authz.go). No body is read. Another spelling of a host or a path
//     has no count of its own, and an address is believed only from trusted proxies.
//   - What this process has decided is kept in bounded memory, some 135 KB for each named limit at most: totals, the last
//     minute, and the busiest keys with what their numbers can be off by (usage.go, overview.go).
//   - The settings say which takes are counted (limits.go). A file of limits that is bad changes nothing.
//
// # When it acts, and what can go wrong
//
// A refused take is an answer with the status 429, whose body is a decision and a problem at once. If Redis does not
// decide within QUERY_TAKE_TIMEOUT, the limit's fail mode does; a limit that is closed then answers 503 (refusals.go).
// A bad file of limits keeps the program from starting.
package gate
