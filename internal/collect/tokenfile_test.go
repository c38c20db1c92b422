package collect

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"tallyroll/internal/yamlfile"
)

func TestParseTokens(t *testing.T) {
	t.Parallel()
	set, secrets, err := parseTokens(fmt.Appendf(nil, `# who may count
tokens:
  - {name: shop, token: "s3cret", prefix: shop.}
  - name: blog
    token_sha256: %X
  - {name: a.b_c-9, token: 12345, prefix: 'ünï '}
`, sha256.Sum256([]byte("other"))))
	if err != nil {
		t.Fatal(err)
	}
	want := []token{
		{"shop", "shop.", sha256.Sum256([]byte("s3cret"))}, {"blog", "", sha256.Sum256([]byte("other"))}, {"a.b_c-9", "ünï ", sha256.Sum256([]byte("12345"))},
	}
	if fmt.Sprint(set) != fmt.Sprint(want) || !secrets {
		t.Errorf("the tokens are %v (secrets: %v), want %v", set, secrets, want)
	}
	_, secrets, err = parseTokens(fmt.Appendf(nil, "tokens: [{name: a, token_sha256: %x}]", sha256.Sum256(nil)))
	if err != nil || secrets {
		t.Errorf("a file of hashes: %v, secrets: %v", err, secrets)
	}
}

func TestParseTokensMistakes(t *testing.T) {
	t.Parallel()
	entry := func(lines ...string) string { return "tokens:\n  - " + strings.Join(lines, "\n    ") + "\n" }
	hash := strings.Repeat("0a", 32)
	for _, c := range []struct {
		name, text string
		line       int
		message    string // a part of it
	}{
		{"empty", "", 0, "it is empty"},
		{"no mapping", "- hunter2\n", 1, "the file is no mapping"},
		{"no list", "tokens: hunter2\n", 1, "no list"},
		{"an empty list", "tokens: []\n", 1, "empty"},
		{"a text", "tokens: [hunter2]\n", 1, "a token is no mapping"},
		{"no YAML", "tokens: [\n", 2, "it is no YAML"},
		{"no name", entry("token: hunter2"), 2, "name: it is missing"},
		{"a bad name", entry("name: a:b", "token: hunter2"), 2, `name: allowed are`},
		{"a long name", entry("name: "+strings.Repeat("a", 65), "token: hunter2"), 2, "1 to 64"},
		{"no token", entry("name: a", "prefix: b"), 2, "token: it is missing"},
		{"both", entry("name: a", "token: hunter2", "token_sha256: "+hash), 4, "token_sha256: token is there, too"},
		{"a space", entry("name: a", "token: hunter2 x"), 3, "token: allowed are visible ASCII"},
		{"not ASCII", entry("name: a", "token: hünter2"), 3, "token: allowed are visible ASCII"},
		{"no token in it", entry("name: a", "token:"), 3, "token: it is empty"},
		{"a short hash", entry("name: a", "token_sha256: "+hash[2:]), 3, "64 hexadecimal digits"},
		{"a long hash", entry("name: a", "token_sha256: "+hash+"00"), 3, "64 hexadecimal digits"},
		{"no hash", entry("name: a", "token_sha256: "+strings.Repeat("x", 64)), 3, "64 hexadecimal digits"},
		{"a bad prefix", entry("name: a", "token: hunter2", `prefix: "a\tb"`), 4, "control character"},
		{"a long prefix", entry("name: a", "token: hunter2", "prefix: "+strings.Repeat("a", 513)), 4, "512"},
		{"an unknown field", entry("name: a", "token: hunter2", "prefixes: a"), 4, "unknown field: allowed is name, token, token_sha256, prefix"},
		{"a secret in place of a field", entry("name: a", "hunter2: x"), 3, "unknown field: allowed is"},
		{"a secret in place of all", "hunter2: x\n", 1, "unknown field: allowed is tokens"},
		{"a secret in place of a name", entry("name: hunter2!", "token: x"), 2, "name: allowed are"},
		{"a name twice", entry("name: a", "token: hunter2") + "  - {name: a, token: hunter3}\n", 4, "on line 2, too"},
		{"a token twice", entry("name: a", "token: hunter2") + "  - {name: b, token: hunter2}\n", 4, "the token on line 2 is the same"},
		{"an alias", "tokens:\n  - &a {name: a, token: hunter2}\n  - *a\n", 3, "an alias is not allowed"},
		{"too many", "tokens:\n" + strings.Repeat("  - {name: a, token: hunter2}\n", maxTokens+1), maxTokens + 2, "allowed are 1000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := parseTokens([]byte(c.text))
			var bad *yamlfile.Error
			if !errors.As(err, &bad) || bad.Line != c.line || !strings.Contains(bad.Message, c.message) {
				t.Errorf("%v; want line %d: …%s…", err, c.line, c.message)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), "hünter")) {
				t.Errorf("the error tells a secret: %v", err)
			}
		})
	}
}
