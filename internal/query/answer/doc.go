// Package answer answers questions about counters: a question in, an answer out. It has no handlers,
// listeners or goroutines. Each question has a file. input.go checks what they have in common, source.go
// reads Redis, forms.go has the forms of the numbers, and format.go chooses between JSON and tables.
//
//   - An answer is read from Redis per request, totals in one round trip. Only Erase changes anything there.
//   - Every total has bounds, and every answer the moment up to which it is whole (as_of). A window that
//     reaches far beyond that has no upper bound. Now is Redis's clock, never this machine's.
//   - HTTP and NATS give the same answers and problems. An Input has the names of a request's parts.
//
// A question waits for Redis for at most Source.Timeout. Read turns the reader's errors into problems: 400
// for a question to correct, 413 for one that costs more than the settings allow, 500 for a key that another
// program has written to, 503 with Retry-After if Redis cannot answer now. Redis's error is only logged.
package answer
