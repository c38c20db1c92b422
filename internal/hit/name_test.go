package hit

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckName(t *testing.T) {
	cases := []struct {
		name, counter string
		err           error
	}{
		{"plain", "api-1", nil},
		{"accents", "café/été", nil},
		{"512 bytes", strings.Repeat("x", 512), nil},
		{"513 bytes", strings.Repeat("x", 513), ErrNameLength},
		{"513 bytes in 257 characters", strings.Repeat("é", 256) + "x", ErrNameLength},
		{"empty", "", ErrNameLength},
		{"tab", "a\tb", ErrNameControl},
		{"NUL", "\x00", ErrNameControl},
		{"delete", "a\x7f", ErrNameControl},
		{"C1 after a letter that is not ASCII", "é\u0080", ErrNameControl},
		{"last of C1", "\u009f", ErrNameControl},
		{"after C1", "\u00a0", nil},
		{"line separator", "a\u2028b", nil},
		{"byte-order mark", "\ufeff", nil},
		{"replacement character", "\ufffd", nil},
		{"cut rune", "caf\xc3", ErrNameUTF8},
		{"surrogate in UTF-8", "\xed\xa0\x80", ErrNameUTF8},
		{"long form", "\xc0\x80", ErrNameUTF8},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if err := CheckName([]byte(c.counter)); !errors.Is(err, c.err) {
				t.Fatalf("%q: %v, want %v", c.counter, err, c.err)
			}
		})
	}
	if err := CheckName(make([]byte, 513)); err.Error() != "the counter's name has 513 bytes; 1 to 512 are allowed" {
		t.Error(err)
	}
}
