package access

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/yamlfile"
)

func TestFileOfTokensIsRead(t *testing.T) {
	t.Parallel()
	got, err := parse(fmt.Appendf(nil, `# who may ask
tokens:
  - {name: shop, sha256: %X, may: [read, take], prefixes: [shop.b, "shop.", a], until: 2027-01-01}
  - name: ops
    sha256: %x
    may:
      - admin
    until: 2027-01-01T12:00:00+02:00
`, sha256.Sum256([]byte("one")), sha256.Sum256([]byte("two"))))
	want := []grant{
		{name: "shop", hash: sha256.Sum256([]byte("one")), may: []Right{Read, Take}, prefixes: []string{"a", "shop."}, until: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)},
		{name: "ops", hash: sha256.Sum256([]byte("two")), may: []Right{Admin}, until: time.Date(2027, 1, 1, 10, 0, 0, 0, time.UTC)},
	}
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestMistakesInAFileHaveTheirLineAndTellNoSecret(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0a", 32)
	entry := func(lines ...string) string {
		all := append([]string{"name: a", "sha256: " + hash, "may: [read]"}, lines...)
		return "tokens:\n  - " + strings.Join(all, "\n    ") + "\n"
	}
	without := func(field string) string {
		lines := strings.Split(strings.Replace(entry(), "  - name: a", "  -\n    name: a", 1), "\n")
		return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "    "+field) }), "\n")
	}
	for _, c := range []struct {
		name, text string
		line       int
		message    string // a part of it
	}{
		{"empty", "", 0, "empty: must be"},
		{"no mapping", "- hunter2\n", 1, "the file must be a mapping"},
		{"no list", "tokens: hunter2\n", 1, "not a list"},
		{"no YAML", "tokens: [\n", 2, "not YAML"},
		{"an empty list", "tokens: []\n", 1, "empty"},
		{"a secret in place of all", "hunter2: x\n", 1, "unknown field: must be one of tokens"},
		{"a secret in place of a field", entry("hunter2: x"), 5, "unknown field: must be one of name"},
		{"a text", "tokens: [hunter2]\n", 1, "a token must be a mapping"},
		{"the token itself", "tokens: [{name: a, token: hunter2, may: [read]}]\n", 1, "unknown field: must be one of name, sha256, may, prefixes, limits, until"},
		{"no name", without("name"), 3, "name: missing"},
		{"no hash", without("sha256"), 3, "sha256: missing"},
		{"no right", without("may"), 3, "may: missing"},
		{"a bad name", strings.Replace(entry(), "name: a", "name: 'hunter2!'", 1), 2, "name: must be 1 to 64"},
		{"a long name", strings.Replace(entry(), "name: a", "name: "+strings.Repeat("a", 65), 1), 2, "1 to 64"},
		{"a long hash", strings.Replace(entry(), hash, hash+"00", 1), 3, "sha256: must be the 64"},
		{"no hexadecimal hash", strings.Replace(entry(), hash, strings.Repeat("x", 64), 1), 3, "sha256: must be the 64"},
		{"too many", "tokens:\n" + strings.Repeat("  - {name: a}\n", maxTokens+1), maxTokens + 2, "at most 1000 are allowed"},
		{"a short hash", strings.Replace(entry(), hash, "hunter2", 1), 3, "sha256: must be the 64"},
		{"no rights", strings.Replace(entry(), "[read]", "[]", 1), 4, "may: must be a list"},
		{"a right alone", strings.Replace(entry(), "[read]", "read", 1), 4, "may: must be a list"},
		{"an unknown right", strings.Replace(entry(), "[read]", "[read, hunter2]", 1), 4, "may: must be a list of some of read, take, count, erase, admin"},
		{"no prefixes in a list", entry("prefixes: []"), 5, "prefixes: must be a list"},
		{"an empty prefix", entry(`prefixes: [a, ""]`), 5, "prefixes: must be a list"},
		{"an empty value", entry("prefixes:"), 5, "prefixes: empty"},
		{"a prefix of no name", entry(`prefixes: ["a\tb"]`), 5, "prefixes: no counter's name begins with one of them"},
		{"a long prefix", entry("prefixes: [" + strings.Repeat("a", 513) + "]"), 5, "512"},
		{"too many prefixes", entry("prefixes: [" + strings.Repeat("a,", 100) + "b]"), 5, "prefixes: there are 101: at most 100 are allowed"},
		{"no limits in a list", entry("limits: []"), 5, "limits: must be a list"},
		{"a limit of no name", entry("limits: [a, a b]"), 5, "limits: must be at most 100 names of limits"},
		{"a limit without keys", entry("limits: ['a:']"), 5, "limits: must be"},
		{"too many limits", entry("limits: [" + strings.Repeat("a,", 100) + "b]"), 5, "limits: must be at most 100"},
		{"no day", entry("until: tomorrow"), 5, "until: must be a day"},
		{"no offset", entry("until: 2027-01-01T12:00:00+24:00"), 5, "until: must be a day"},
		{"twice the same name", entry() + strings.Replace(strings.TrimPrefix(entry(), "tokens:\n"), hash, strings.Repeat("0b", 32), 1), 5, "the name of the token on line 2"},
		{"twice the same token", entry() + strings.Replace(strings.TrimPrefix(entry(), "tokens:\n"), "name: a", "name: b", 1), 5, "the token on line 2 is the same"},
		{"an alias", entry("until: *a"), 5, "alias"},
	} {
		_, err := parse([]byte(c.text))
		var bad *yamlfile.Error
		if !errors.As(err, &bad) || bad.Line != c.line || !strings.Contains(bad.Message, c.message) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want line %d: %s", c.name, err, c.line, c.message)
		}
	}
}
