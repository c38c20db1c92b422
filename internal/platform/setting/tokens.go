package setting

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// Tokens are the bearer tokens of an HTTP API, kept as hashes only. The zero value requires none.
type Tokens struct{ hashes [][sha256.Size]byte }

func (t *Tokens) UnmarshalText(text []byte) error {
	t.hashes = nil
	for token := range strings.SplitSeq(string(text), ",") {
		token = strings.TrimSpace(token)
		if !isPlainToken(token) {
			return fmt.Errorf("comma-separated tokens, none of them empty, of visible ASCII characters without spaces")
		}
		t.hashes = append(t.hashes, sha256.Sum256([]byte(token)))
	}
	return nil
}

// isPlainToken reports whether an HTTP header can carry a token unchanged.
func isPlainToken(token string) bool {
	return token != "" && strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

func (t Tokens) Hashes() [][sha256.Size]byte { return t.hashes }
