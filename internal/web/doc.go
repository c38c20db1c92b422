// Package web has what the services that speak HTTP share: problems (RFC 9457), the edge of every
// request, and the pages that describe an API.
//
// # What it promises
//
// Every error has the form of a Problem (problem.go), whose detail says what was wrong and what is
// allowed. A handler that panics ends its request and not the process (edge.go). An answer has one status,
// and is 304 if the client has it already (response.go).
//
// The OpenAPI document (openapi.go, schema.go) is the one source for machines and, as the page /docs
// (docs.go, docspage.go), for people. The page loads nothing from anywhere.
package web
