package yamlfile

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// Values may be secrets: no mistake may bring one into a log.
func TestMistakesQuoteNoValue(t *testing.T) {
	const secret = "hunter2"
	for _, text := range []string{
		"a: %s\nb: [", "a: %s\n---\na: %s\n", "a: %s\na: %s\n", "- %s\n", "%s", "a: &x %s\nb: *x\n", "a: [%s]\nb: 1\n", "a: %s\nc: 1\n",
		"a: '%s\n", "a: \"\\q%s\"\n", "a: !!int %s\nb: [1]\n", "a:\n\t- %s\n", "a: %s: b\n", "a: @%s\n", "a: *%s\n", "a: !%s\n", "a: !x!%s y\n", "a: |x%s\n",
	} {
		text = strings.ReplaceAll(text, "%s", secret)
		node, err := Document([]byte(text), "a thing")
		if err == nil {
			_, err = Fields(node, "a thing", "a", "b")
		}
		var bad *Error
		if err != nil && (!errors.As(err, &bad) || strings.Contains(err.Error(), secret)) {
			t.Errorf("%q: %v (%T)", text, err, err)
		}
		if err == nil && !strings.HasPrefix(text, "a: !") {
			t.Errorf("%q is not refused", text)
		}
	}
}

// A secret may stand where the name of a field should.
func TestSecretFieldsQuoteNoName(t *testing.T) {
	for _, text := range []string{"hunter2: x\n", "a: 1\nhunter2: x\n", "? hunter2\n: x\n", "hunter2:\n", "{hunter2: x}", "a: 1\nhunter2:\n  - x\n", "a: 1\n: hunter2\n"} {
		node, err := Document([]byte(text), "a thing")
		require.NoErrorf(t, err, "%q", text)
		_, err = SecretFields(node, "a thing", "a", "b")
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "must be one of a, b") {
			t.Errorf("%q: %v", text, err)
		}
		if _, err = Fields(node, "a thing", "a", "b"); err == nil || len(err.Error()) > 300 {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// However long a name or a value is, the mistake is a line.
func TestMistakesAreShort(t *testing.T) {
	for _, long := range []string{strings.Repeat("x", 100_000), strings.Repeat("é", 50_000), strings.Repeat("\u202e", 50_000)} {
		node, err := Document([]byte(long+": 1\n"), "a thing")
		require.NoError(t, err)
		_, err = Fields(node, "a thing", "a")
		for _, err := range []error{err, Errorf(3, "name: %s is too long", long)} {
			if err == nil || len(err.Error()) > 600 || !utf8.ValidString(err.Error()) {
				t.Errorf("%.700v", err)
			}
		}
	}
}

func TestFieldsAreCheckedByName(t *testing.T) {
	node, err := Document([]byte("# a comment\na: one\nb: 2\n"), "a thing")
	require.NoError(t, err)
	fields, err := Fields(node, "a thing", "a", "b", "c")
	require.NoError(t, err)
	if got := fmt.Sprintf("%q %q %q %d", Value(fields["a"]), Value(fields["b"]), Value(fields["c"]), fields["b"].Line); got != `"one" "2" "" 3` {
		t.Errorf("the fields are %s", got)
	}
}
