package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/web"
)

// Tokens are those that a service knows: of its setting …_TOKENS, which may do everything, and of its file.
type Tokens struct {
	setting string // what the names of both settings begin with, such as QUERY_TOKENS
	file    string // empty: there is none
	plain   []*Token
	log     zerolog.Logger
	// reloaded is told of each time that the file was read again.
	reloaded func(error)
	named    atomic.Pointer[[]*Token]

	followed *boot.Files
	mu       sync.Mutex // held while the file is read
}

// Settings are those of tokens. Program is what their names begin with, such as QUERY.
type Settings struct {
	Program string
	Plain   boot.Tokens // of …_TOKENS
	File    string      // …_TOKENS_FILE
}

// New reads the file, if there is one. Its error names the setting, the file and the line. watch returns what is to be told
// of each time that the file is read again.
func New(s Settings, log zerolog.Logger, watch func(what string) func(error)) (*Tokens, error) {
	t := &Tokens{setting: s.Program + "_TOKENS", file: s.File, followed: boot.NewFiles(s.File), log: log}
	for _, hash := range s.Plain.Hashes() {
		t.plain = append(t.plain, grant{name: hex.EncodeToString(hash[:4]), hash: hash, may: allRights}.start())
	}
	t.named.Store(new([]*Token))
	if s.File == "" {
		return t, nil
	}
	err := t.read()
	if err != nil {
		return nil, boot.UsageError{Err: err}
	}
	t.reloaded = watch("tokens")
	return t, nil
}

// Required reports whether a caller needs a token.
func (t *Tokens) Required() bool { return len(t.plain) > 0 || t.file != "" }

// Count is how many there are.
func (t *Tokens) Count() int { return len(t.plain) + len(*t.named.Load()) }

// Settings are the names of those that tokens come from.
func (t *Tokens) Settings() string {
	switch {
	case t.file == "":
		return t.setting
	case len(t.plain) == 0:
		return t.setting + "_FILE"
	}
	return t.setting + " or " + t.setting + "_FILE"
}

// Find returns the token that a request carries, or why it is refused. It compares hashes, and always all of them, so the
// time that it takes reveals nothing about a token. Without any tokens, everybody has the nil one.
func (t *Tokens) Find(r *http.Request) (*Token, *web.Problem) {
	if !t.Required() {
		return nil, nil
	}
	refuse := func(detail string) *web.Problem {
		return web.NewProblem(http.StatusUnauthorized, detail).WithHeader("WWW-Authenticate", "Bearer")
	}
	given, carried := boot.BearerHash(r)
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
	case found == nil || !carried:
		return nil, refuse("this call needs the header Authorization: Bearer with one of the tokens of " + t.Settings())
	case !found.until.IsZero() && !time.Now().Before(found.until):
		return nil, refuse(fmt.Sprintf("the token %s has ended at %s: ask whoever runs the service for another one", found.name, found.until.Format(time.RFC3339)))
	}
	return found, nil
}

// Follow reads the file again when it has changed, until ctx ends.
func (t *Tokens) Follow(ctx context.Context) error {
	if t.file != "" {
		t.followed.Follow(ctx, func() { t.Reload("file") })
	}
	return nil
}

// Reload reads the file again. A bad one changes nothing. why is what has caused it, for the log.
func (t *Tokens) Reload(why string) {
	if t.file == "" {
		return
	}
	err := t.read()
	t.reloaded(err)
	if err != nil {
		t.log.Error().Bool("audit", true).Str("from", why).Err(err).Int("tokens", t.Count()).Msg("tokens not reloaded: they stay as they were")
		return
	}
	t.log.Info().Bool("audit", true).Str("from", why).Str("file", t.file).Int("tokens", t.Count()).Msg("tokens reloaded")
}

// read takes the tokens of the file in place of those before. A token that is as it was goes on.
func (t *Tokens) read() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.followed.Reading()
	data, err := t.content()
	if err != nil {
		return fmt.Errorf("%s_FILE: %s", t.setting, boot.Conceal(t.file, err.Error()))
	}
	grants, err := parse(data)
	if err != nil {
		return fmt.Errorf("%s_FILE: %s: %w", t.setting, t.file, err)
	}
	before := make(map[[sha256.Size]byte]*Token)
	for _, token := range *t.named.Load() {
		before[token.hash] = token
	}
	set := make([]*Token, len(grants))
	for i, g := range grants {
		if old := before[g.hash]; old != nil && old.same(g) {
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
	return nil
}

// maxFile bounds the file in bytes.
const maxFile = 1 << 20

func (t *Tokens) content() ([]byte, error) {
	file, err := os.Open(t.file)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s: it has more than %d bytes: allowed is a file of at most that size", t.file, maxFile)
	}
	return data, err
}
