// Llmproxy stands before the API of a language model. It takes what a request can cost at most, under the
// limits tokens-5h and tokens-7d, and settles what it did cost:
//
//	TALLYROLL_URL=http://127.0.0.1:8080 UPSTREAM=https://llm.example go run ./examples/go/llmproxy
//
// The caller's key is the field Authorization. Requests need max_tokens, of each of their n answers. A byte
// of a request is a token at most, so no request costs more than was taken, as long as the model keeps to
// max_tokens.
package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

var tallyroll, upstream = cmp.Or(os.Getenv("TALLYROLL_URL"), "http://127.0.0.1:8080"), os.Getenv("UPSTREAM")

// post sends JSON until it has an answer: with its id, each request counts once. An answer other than 200 and
// 429 is an error with the detail.
func post(path string, body map[string]any) (answer *http.Response, err error) {
	data, _ := json.Marshal(body)
	for range 5 {
		answer, err = http.Post(tallyroll+path, "application/json", bytes.NewReader(data))
		if err == nil {
			text, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10)) // to its end: the connection is used again
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusTooManyRequests {
				return answer, nil
			}
			err = fmt.Errorf("%s %s", answer.Status, text)
			if answer.StatusCode < 500 {
				break
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	return nil, fmt.Errorf("%s: %w", path, err)
}

func proxy(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	question := struct {
		Most    int64 `json:"max_tokens"`
		Answers int64 `json:"n"`
	}{Answers: 1}
	if err != nil || json.Unmarshal(body, &question) != nil {
		http.Error(w, "max_tokens is missing", http.StatusBadRequest)
		return
	}
	if min(question.Most, question.Answers) < 1 || max(question.Most, question.Answers) > 1_000_000 {
		http.Error(w, "max_tokens and n must be 1 to 1000000", http.StatusBadRequest)
		return
	}
	most := question.Most*question.Answers + int64(len(body))
	id, key := rand.Text(), fmt.Sprintf("%x", sha256.Sum256([]byte(r.Header.Get("Authorization"))))
	budget := []map[string]any{{"limit": "tokens-5h", "key": key}, {"limit": "tokens-7d", "key": key}}
	taken, err := post("/v1/take", map[string]any{"take": budget, "id": id, "n": most, "ttl": "1h"})
	if err != nil {
		log.Print("not taken: ", err)
		http.Error(w, "not taken: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	if taken.StatusCode == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", taken.Header.Get("Retry-After"))
		http.Error(w, "no tokens are left", http.StatusTooManyRequests)
		return
	}
	forwarded, _ := http.NewRequestWithContext(r.Context(), http.MethodPost, upstream+r.URL.Path, bytes.NewReader(body))
	forwarded.Header = r.Header.Clone()
	forwarded.Header.Del("Accept-Encoding") // so that the answer can be read
	answer, err := http.DefaultClient.Do(forwarded)
	if err == nil {
		defer answer.Body.Close()
		body, err = io.ReadAll(answer.Body)
	}
	if err != nil { // what it did cost is unknown, so it stays as taken
		http.Error(w, "the model does not answer", http.StatusBadGateway)
		return
	}
	var cost struct {
		Usage struct {
			Total *int64 `json:"total_tokens"`
		}
	}
	used := int64(0)
	if answer.StatusCode == http.StatusOK {
		used = most // of an answer without usage, such as a stream
		if json.Unmarshal(body, &cost) == nil && cost.Usage.Total != nil {
			used = *cost.Usage.Total
		}
	}
	if _, err := post("/v1/settle", map[string]any{"settle": budget, "id": id, "n": used}); err != nil {
		log.Print("not settled, so it stays as taken: ", err)
	}
	w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(body)
}

func main() {
	// As many as requests at a time: of more, each opens a connection and closes it.
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 100
	log.Fatal(http.ListenAndServe(cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8000"), http.HandlerFunc(proxy)))
}
