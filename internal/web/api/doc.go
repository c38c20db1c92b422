// Package api describes what an HTTP API takes and answers, and serves it.
//
// # What it promises
//
//   - The OpenAPI document is made from the Go types that are read and written, and is the one source for machines and, as
//     the page /docs, for people (docs.go): Swagger UI, which is in the program. The page loads nothing from elsewhere, and
//     asks only the service itself, if somebody tries a call.
//   - A mistyped question is never answered as if it were another one: parameters and fields that are not described are
//     refused, and so are those that are there twice (params.go, body.go).
//   - Answers are JSON as encoding/json writes it, to the last byte (json.go).
//
// # What can go wrong
//
// What cannot be read is refused with a problem of package web that names the parameter. Descriptions that huma refuses
// are faults of the program, and panic when it starts. There are no goroutines.
package api
