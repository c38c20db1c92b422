// Package web has what the HTTP services share. The description of an API is in web/api, whose library promql
// does without.
//
//   - Every API error is a Problem (problem.go), whose detail says what was wrong and what is allowed.
//   - A handler that panics ends its request and not the process. Every request is measured by route, status
//     and time. An answer has one status, and is 304 if the client already has it (server.go).
//   - A client's address is what trusted proxies report, and nothing that the client can forge. What
//     browsers send for pages of other origins is answered only for named origins (callers.go).
//
// A Server listens at once, on one address or, for /metrics, on two. When its context ends, the requests
// under way get five seconds; [Serve] waits for their handlers. An address in use or an unreadable
// certificate keeps the program from starting; a certificate that goes bad later changes nothing.
package web
