// Package limitapi is the limits API over HTTP: it reads takes, lets internal/limit decide, and writes
// decisions.
//
//   - Hits of several takes are counted all or none. Refused hits are not counted.
//   - GET /v1/limit counts nothing. For a counter of the streams it uses its rolling total (look.go).
//   - A proxy asks about its client's request (authz.go). No body is read. Another spelling of a host or a
//     path has no count of its own. Only trusted proxies are believed about an address.
//   - Past decisions are kept in bounded memory, at most some 135 KB per named limit (usage.go).
//
// A refusal is a 429 whose body is a decision and a problem. If Redis does not decide within
// QUERY_TAKE_TIMEOUT, the limit's fail mode does; closed answers 503 (errors.go). A bad file of limits keeps
// the program from starting, and changes nothing later.
//
// Files call only files further down:
//
//	routes → authz, take, look, slots, overview → decision, item → errors → service → limits → usage
package limitapi
