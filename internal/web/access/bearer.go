package access

import (
	"crypto/sha256"
	"net/http"
	"strings"
)

// BearerHash returns the SHA-256 of a request's bearer token; ok is false if it has none.
func BearerHash(r *http.Request) (hash [sha256.Size]byte, ok bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return hash, false
	}
	return sha256.Sum256([]byte(strings.TrimSpace(token))), true
}
