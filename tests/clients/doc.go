// Package clients holds tests of what programs elsewhere use: a client that is generated from the OpenAPI
// document, and the examples in examples/.
package clients
