package collect

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"sync/atomic"

	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v4"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/internal/yamlfile"
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

// follow reads the file again at each signal, until ctx ends. A bad file changes nothing.
func (t *tokens) follow(ctx context.Context, signals <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
			boot.Reload(t.reload)
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

// count is how many tokens there are.
func (t *tokens) count() int {
	if !t.required() {
		return 0
	}
	return len(*t.set.Load())
}

// required reports whether POST /v1/hits needs a token.
func (t *tokens) required() bool { return t.file != "" }

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

// maxTokens bounds the file: each request is compared with every token, in a tenth of a millisecond
// at most.
const maxTokens = 1000

// token opens POST /v1/hits to those who have it. Only its hash is kept.
type token struct {
	name   string
	prefix string // of all keys that its bearer may count; empty for any
	hash   [sha256.Size]byte
}

// the fields of a token in the file
const tokenFields = "name, token or token_sha256, and optionally prefix"

// tokenName has no colon: the name and a colon are put before a caller's Idempotency-Key.
var tokenName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// parseTokens reads a file of tokens:
//
//	tokens:
//	  - name: shop            # 1 to 64 letters, digits, underscores, hyphens and dots
//	    token: s3cret         # visible ASCII characters without spaces
//	    prefix: shop.         # optional: all keys must begin with it
//	  - name: blog
//	    token_sha256: 2c26…   # SHA-256 of the token in hexadecimal, so that the file holds no secret
//
// secrets reports whether the file holds a token itself. The error is a *yamlfile.Error; it
// quotes nothing that may be a token.
func parseTokens(data []byte) (tokens []token, secrets bool, err error) {
	document, err := yamlfile.Document(data, "a list of tokens under tokens:")
	if err != nil {
		return nil, false, err
	}
	top, err := yamlfile.SecretFields(document, "the file", "tokens")
	if err != nil {
		return nil, false, err
	}
	entries := top["tokens"]
	if entries == nil || entries.Kind != yaml.SequenceNode || len(entries.Content) == 0 {
		return nil, false, yamlfile.Errorf(document.Line, "tokens: it is missing, empty or no list: allowed is a list of tokens, each with %s", tokenFields)
	}
	if n := len(entries.Content); n > maxTokens {
		return nil, false, yamlfile.Errorf(entries.Content[maxTokens].Line, "the file has %d tokens: allowed are %d", n, maxTokens)
	}
	names, hashes := make(map[string]int), make(map[[sha256.Size]byte]int)
	for _, node := range entries.Content {
		t, plain, err := parseToken(node)
		if err != nil {
			return nil, false, err
		}
		if line := names[t.name]; line > 0 {
			return nil, false, yamlfile.Errorf(node.Line, "name: %q is the name of the token on line %d, too", t.name, line)
		}
		if line := hashes[t.hash]; line > 0 {
			return nil, false, yamlfile.Errorf(node.Line, "token: the token on line %d is the same: nobody could say whose hits they are", line)
		}
		names[t.name], hashes[t.hash] = node.Line, node.Line
		tokens, secrets = append(tokens, t), secrets || plain
	}
	return tokens, secrets, nil
}

// parseToken reads one entry. plain reports whether it holds the token itself.
func parseToken(node *yaml.Node) (t token, plain bool, err error) {
	fields, err := yamlfile.SecretFields(node, "a token", "name", "token", "token_sha256", "prefix")
	if err != nil {
		return token{}, false, err
	}
	wrong := func(field, format string, args ...any) (token, bool, error) {
		return token{}, false, yamlfile.Errorf(fields[field].Line, field+": "+format, args...)
	}
	if fields["name"] == nil {
		return token{}, false, yamlfile.Errorf(node.Line, "name: it is missing: a token needs %s", tokenFields)
	}
	t.name, t.prefix = fields["name"].Value, yamlfile.Value(fields["prefix"])
	if !tokenName.MatchString(t.name) {
		return wrong("name", "allowed are 1 to 64 letters, digits, underscores, hyphens and dots") // it may be a token in the wrong place
	}
	secret, digest := fields["token"], fields["token_sha256"]
	switch {
	case secret == nil && digest == nil:
		return token{}, false, yamlfile.Errorf(node.Line, "token: it is missing: a token needs %s", tokenFields)
	case secret != nil && digest != nil:
		return wrong("token_sha256", "token is there, too: allowed is one of them")
	case secret != nil:
		if !boot.PlainToken(secret.Value) {
			return wrong("token", "allowed are visible ASCII characters without spaces")
		}
		t.hash = sha256.Sum256([]byte(secret.Value))
	default:
		hash, err := hex.DecodeString(digest.Value)
		if err != nil || len(hash) != sha256.Size {
			return wrong("token_sha256", "allowed are the 64 hexadecimal digits of the token's SHA-256: printf %%s TOKEN | sha256sum")
		}
		t.hash = [sha256.Size]byte(hash)
	}
	if prefix := fields["prefix"]; prefix != nil {
		err = hit.CheckName([]byte(t.prefix))
		if err != nil {
			return wrong("prefix", "no counter's name begins with it: %v", err)
		}
	}
	return t, secret != nil, nil
}
