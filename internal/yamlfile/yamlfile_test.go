package yamlfile

import (
	"errors"
	"fmt"
	"strings"
	"testing"
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

func TestFields(t *testing.T) {
	node, err := Document([]byte("# a comment\na: one\nb: 2\n"), "a thing")
	if err != nil {
		t.Fatal(err)
	}
	fields, err := Fields(node, "a thing", "a", "b", "c")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%q %q %q %d", Value(fields["a"]), Value(fields["b"]), Value(fields["c"]), fields["b"].Line); got != `"one" "2" "" 3` {
		t.Errorf("the fields are %s", got)
	}
}
