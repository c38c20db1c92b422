// Middleware is a service whose handler runs only if a limit of Tallyroll allows the request: copy takeFirst.
//
//	TALLYROLL_URL=http://127.0.0.1:8080 LIMIT=login go run ./examples/go/middleware
//	curl -i -H 'X-Api-Key: alice' http://127.0.0.1:8000/
//
// If Tallyroll does not answer within the timeout, or with 5xx, FAIL says what becomes of the request: open
// (the default) lets it through, closed answers 503. So does any other answer, whatever FAIL is: the question
// is wrong, and to let everybody through would hide that.
package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"
	"unicode/utf8"
)

type limiter struct {
	url, limit string
	failOpen   bool
	client     http.Client
}

// takeFirst asks the limit about the client's key before each request.
func (l *limiter) takeFirst(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := json.Marshal(map[string]any{"limit": l.limit, "key": keyOf(r.Header.Get("X-Api-Key"))})
		answer, problem, err := l.post("/v1/take", body)
		switch {
		case err == nil && (answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusTooManyRequests):
			for _, name := range []string{"RateLimit", "RateLimit-Policy", "Retry-After"} {
				if value := answer.Header.Get(name); value != "" {
					w.Header().Set(name, value)
				}
			}
			if answer.StatusCode == http.StatusTooManyRequests {
				http.Error(w, "too many requests", http.StatusTooManyRequests)
				return
			}
		default:
			away := err != nil || answer.StatusCode >= 500
			if err == nil {
				err = fmt.Errorf("%s %s", answer.Status, problem)
			}
			log.Printf("no decision of the limit %s: %v", l.limit, err)
			if !away || !l.failOpen {
				http.Error(w, "the limit cannot be asked", http.StatusServiceUnavailable)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// keyOf returns the key of a client. JSON has no bytes that are not UTF-8, so they are hashed, as Tallyroll
// hashes a key that is too long.
func keyOf(header string) string {
	if !utf8.ValidString(header) {
		return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(header)))
	}
	return cmp.Or(header, "anonymous")
}

// post reads the answer to its end and closes it, so that the next question uses the same connection.
func (l *limiter) post(path string, body []byte) (answer *http.Response, text []byte, err error) {
	answer, err = l.client.Post(l.url+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	return answer, text, err
}

func main() {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 100 // as many as requests at a time: of more, each opens one and closes it
	l := &limiter{
		url: cmp.Or(os.Getenv("TALLYROLL_URL"), "http://127.0.0.1:8080"), limit: cmp.Or(os.Getenv("LIMIT"), "login"),
		failOpen: os.Getenv("FAIL") != "closed",
		client:   http.Client{Timeout: 300 * time.Millisecond, Transport: transport},
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	log.Fatal(http.ListenAndServe(cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8000"), l.takeFirst(hello)))
}
