package collect

import (
	"context"
	"crypto/subtle"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
)

// maxTokensFile bounds the file in bytes.
const maxTokensFile = 1 << 20

// tokens are the bearer tokens of COLLECT_TOKENS_FILE.
type tokens struct {
	file string // empty: nobody needs a token
	log  zerolog.Logger
	set  atomic.Pointer[[]token]
	// reloaded is told of each time that the file was read again.
	reloaded func(error)
}

// newTokens reads the file, if there is one. Its error names the setting, the file and the line.
func newTokens(file string, log zerolog.Logger) (*tokens, error) {
	t := &tokens{file: file, log: log, reloaded: func(error) {}}
	if file == "" {
		return t, nil
	}
	set, err := t.read()
	if err != nil {
		return nil, boot.UsageError{Err: err}
	}
	t.set.Store(&set)
	return t, nil
}

// required reports whether POST /v1/hits needs a token.
func (t *tokens) required() bool { return t.file != "" }

// count is how many tokens there are.
func (t *tokens) count() int {
	if !t.required() {
		return 0
	}
	return len(*t.set.Load())
}

// find returns the token that a request carries. It compares hashes, and always all of them, so the time that it
// takes reveals nothing about a token.
func (t *tokens) find(r *http.Request) (found token, ok bool) {
	given, ok := boot.BearerHash(r)
	if !ok {
		return token{}, false
	}
	set, at := *t.set.Load(), -1
	for i := range set {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(given[:], set[i].hash[:]), i, at)
	}
	if at < 0 {
		return token{}, false
	}
	return set[at], true
}

func (t *tokens) read() ([]token, error) {
	set, mode, secrets, err := readTokens(t.file)
	if err != nil {
		return nil, err
	}
	if secrets && mode.Perm()&0o004 != 0 {
		t.log.Warn().Str("file", t.file).Str("mode", mode.Perm().String()).
			Msg("every user of this machine can read the tokens of COLLECT_TOKENS_FILE: chmod o-r, or write token_sha256 in place of token")
	}
	return set, nil
}

func readTokens(path string) (set []token, mode fs.FileMode, secrets bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, false, fmt.Errorf("COLLECT_TOKENS_FILE: %s", boot.Conceal(path, err.Error()))
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, 0, false, fmt.Errorf("COLLECT_TOKENS_FILE: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxTokensFile+1))
	if err != nil {
		return nil, 0, false, fmt.Errorf("COLLECT_TOKENS_FILE: %w", err)
	}
	if len(data) > maxTokensFile {
		return nil, 0, false, fmt.Errorf("COLLECT_TOKENS_FILE: %s: it has more than %d bytes: allowed is a file of at most that size", path, maxTokensFile)
	}
	set, secrets, err = parseTokens(data)
	if err != nil {
		return nil, 0, false, fmt.Errorf("COLLECT_TOKENS_FILE: %s: %w", path, err)
	}
	return set, info.Mode(), secrets, nil
}

// run reads the file again at each signal, until ctx ends. A bad file changes nothing.
func (t *tokens) run(ctx context.Context, signals <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
			t.reload()
		}
	}
}

func (t *tokens) reload() {
	if !t.required() {
		t.log.Info().Msg("nothing to reload: COLLECT_TOKENS_FILE is not set")
		return
	}
	set, err := t.read()
	t.reloaded(err)
	if err != nil {
		t.log.Error().Err(err).Int("tokens", t.count()).Msg("tokens not reloaded: they stay as they were")
		return
	}
	t.set.Store(&set)
	t.log.Info().Str("file", t.file).Int("tokens", len(set)).Msg("tokens reloaded")
}
