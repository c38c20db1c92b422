package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/platform/setting"
	"tallyroll/internal/web"
)

// Tokens are those of a service: of its setting …_TOKENS, with all rights, and of its file.
type Tokens struct {
	setting string // what the names of both settings begin with, such as QUERY_TOKENS
	hasFile bool
	plain   []*Token
	named   atomic.Pointer[[]*Token] // of the file
}

// TokenSettings are those of tokens. Program begins their names, such as QUERY.
type TokenSettings struct {
	Program string
	Plain   setting.Tokens // of …_TOKENS
	File    string         // …_TOKENS_FILE
}

// New reads the file, if any, and adds it to files. Its error names the setting, the file and the line.
func New(s TokenSettings, files *setting.Files) (*Tokens, error) {
	t := &Tokens{setting: s.Program + "_TOKENS", hasFile: s.File != ""}
	for _, hash := range s.Plain.Hashes() {
		t.plain = append(t.plain, grant{name: hex.EncodeToString(hash[:4]), hash: hash, may: allRights}.start())
	}
	t.named.Store(new([]*Token))
	_, err := setting.Open(files, "tokens", setting.Path{Key: t.setting + "_FILE", File: s.File}, parse, t.use)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Required reports whether a caller needs a token.
func (t *Tokens) Required() bool { return len(t.plain) > 0 || t.hasFile }

func (t *Tokens) Count() int { return len(t.plain) + len(*t.named.Load()) }

// Settings are the names of the settings that tokens come from.
func (t *Tokens) Settings() string {
	switch {
	case !t.hasFile:
		return t.setting
	case len(t.plain) == 0:
		return t.setting + "_FILE"
	}
	return t.setting + " or " + t.setting + "_FILE"
}

// Find returns the token of a request, or why it is refused. It always compares all hashes, so its time
// reveals nothing about a token. If there are no tokens, it returns nil.
func (t *Tokens) Find(r *http.Request) (*Token, *web.Problem) {
	if !t.Required() {
		return nil, nil
	}
	refuse := func(detail string) *web.Problem {
		return web.NewProblem(http.StatusUnauthorized, detail).WithHeader("WWW-Authenticate", "Bearer")
	}
	given, hasToken := BearerHash(r)
	var found *Token
	for _, set := range [][]*Token{t.plain, *t.named.Load()} {
		at := -1
		for i := range set {
			at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(given[:], set[i].hash[:]), i, at)
		}
		if at >= 0 {
			found = set[at]
		}
	}
	switch {
	case found == nil || !hasToken:
		return nil, refuse("this call needs the header Authorization: Bearer with one of the tokens of " + t.Settings())
	case !found.until.IsZero() && !time.Now().Before(found.until):
		return nil, refuse(fmt.Sprintf("the token %s ended at %s: ask the operator of the service for another one",
			found.name, found.until.Format(time.RFC3339)))
	}
	return found, nil
}

// BearerHash returns the SHA-256 of a request's bearer token; ok is false if it has none.
func BearerHash(r *http.Request) (hash [sha256.Size]byte, ok bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return hash, false
	}
	return sha256.Sum256([]byte(strings.TrimSpace(token))), true
}

// use replaces the file's tokens. An unchanged token goes on.
func (t *Tokens) use(grants []grant, line *zerolog.Event) {
	before := make(map[[sha256.Size]byte]*Token)
	for _, token := range *t.named.Load() {
		before[token.hash] = token
	}
	set := make([]*Token, len(grants))
	for i, g := range grants {
		if old := before[g.hash]; old != nil && old.equal(g) {
			set[i] = old
			delete(before, g.hash)
			continue
		}
		set[i] = g.start()
	}
	t.named.Store(&set)
	for _, gone := range before {
		gone.end()
	}
	line.Int("tokens", len(set))
}
