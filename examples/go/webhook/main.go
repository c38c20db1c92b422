// Webhook receives the alerts of watch: it verifies the signature, refuses old ones, and handles each change
// once.
//
//	SECRET=whsec_… go run ./examples/go/webhook
//
// In watch.yml: targets: {me: {webhook: http://127.0.0.1:8090/, secret_file: FILE}}, with the same secret.
package main

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const tolerance = 5 * time.Minute // of the sender's clock

// verify checks a body as Standard Webhooks wants it: one of the signatures must be ours.
func verify(secret []byte, h http.Header, body []byte, now time.Time) bool {
	id, stamp := h.Get("webhook-id"), h.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > tolerance {
		return false
	}
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, stamp, body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, signature := range strings.Fields(h.Get("webhook-signature")) {
		if hmac.Equal([]byte(signature), []byte(want)) {
			return true
		}
	}
	return false
}

func main() {
	secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("SECRET"), "whsec_"))
	if err != nil || len(secret) == 0 {
		log.Fatal("SECRET must be whsec_ and base64")
	}
	var mu sync.Mutex
	seen := make(map[string]bool) // keep them in a database to survive a restart
	http.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil || !verify(secret, r.Header, body, time.Now()) {
			http.Error(w, "the signature is wrong or old", http.StatusUnauthorized)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if id := r.Header.Get("webhook-id"); !seen[id] {
			seen[id] = true
			fmt.Printf("%s\n", body) // here your program reacts
		}
	})
	log.Fatal(http.ListenAndServe(cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8090"), nil))
}
