// Package web has what the services that speak HTTP share. What describes an API is in web/api, with the library that
// it needs: promql does without.
//
// # What it promises
//
//   - Every error of the API has the form of a Problem (problem.go), whose detail says what was wrong and what is allowed.
//   - A handler that panics ends its request and not the process (server.go). Every request is measured by its route,
//     its status and its time.
//   - An answer has one status, and is 304 if the client has it already (server.go).
//   - A client's address is the one that trusted proxies tell, and never one that the client can make up (callers.go).
//   - Pages of other origins can have browsers send requests, but only those of named origins are answered
//     (callers.go).
//
// # When it acts, and what can go wrong
//
// A Server listens at once, on one address or, for /metrics, on two. When its context ends, it lets the requests under
// way end, for five seconds at most. An address that is taken, or a certificate that cannot be read, keeps the program
// from starting; a certificate that goes bad later changes nothing.
//
// # Goroutines
//
//	goroutine        owns                                 who waits for it
//	Server.Serve     the listeners; boot.Serve for each   its caller
//	a handler        one request                          boot.Serve, for five seconds
package web
