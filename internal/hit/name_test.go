package hit

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamesAreCheckedByTheirRules(t *testing.T) {
	for want, names := range map[error][]string{
		nil:            {"api-1", "café/été", strings.Repeat("x", 512), "\u00a0", "a\u2028b", "\ufeff", "\ufffd"},
		ErrNameLength:  {"", strings.Repeat("x", 513), strings.Repeat("é", 256) + "x"},
		ErrNameControl: {"a\tb", "\x00", "a\x7f", "é\u0080", "\u009f"},
		ErrNameUTF8:    {"caf\xc3", "\xed\xa0\x80", "\xc0\x80"},
	} {
		for _, name := range names {
			require.ErrorIs(t, CheckName([]byte(name)), want, "%q", name)
		}
	}
	require.EqualError(t, CheckName(make([]byte, 513)), "the counter's name has 513 bytes; 1 to 512 are allowed")
}
