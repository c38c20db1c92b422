// Package api describes what an HTTP API takes and answers, and serves it.
//
//   - The OpenAPI document is made from the Go types that are read and written. Programs read
//     it at /openapi.json. The page /docs lists its groups, and the page of a group shows it (Swagger UI,
//     embedded). They load nothing from elsewhere.
//   - A parameter of a query string is named once, in the tag of its field (params.go): HandleQuery finds the
//     fields of a type when an operation is registered, not for each request.
//   - Parameters and fields that are unknown or given twice are refused, so that a mistyped question is never
//     answered as another one (params.go, body.go).
//   - Answers are JSON, byte-identical to encoding/json.
//   - A request that cannot be read gets a problem of package web that names the parameter. Descriptions that
//     huma refuses are program faults, and panic at start. There are no goroutines.
package api
