package collect

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"regexp"

	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v4"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/internal/yamlfile"
)

// tokens are the bearer tokens of COLLECT_TOKENS_FILE.
type tokens struct{ file *boot.File[[]token] } // nil: nobody needs a token

// newTokens reads the file, if there is one. Its error names the setting, the file and the line.
func newTokens(file string, files *boot.Files) (*tokens, error) {
	parse := func(text []byte) ([]token, error) {
		set, _, err := parseTokens(text)
		return set, err
	}
	opened, err := boot.Open(files, "tokens", boot.SettingFile{Key: "COLLECT_TOKENS_FILE", Path: file}, parse, func(set []token, line *zerolog.Event) {
		line.Int("tokens", len(set))
	})
	return &tokens{opened}, err
}

// find returns the token that a request carries. It compares hashes, and always all of them, so the time that it
// takes reveals nothing about a token.
func (t *tokens) find(r *http.Request) (found token, ok bool) {
	given, ok := boot.BearerHash(r)
	if !ok {
		return token{}, false
	}
	set, at := t.file.Load(), -1
	for i := range set {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(given[:], set[i].hash[:]), i, at)
	}
	if at < 0 {
		return token{}, false
	}
	return set[at], true
}

// count is how many tokens there are.
func (t *tokens) count() int { return len(t.file.Load()) }

// required reports whether POST /v1/hits needs a token.
func (t *tokens) required() bool { return t.file != nil }

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
