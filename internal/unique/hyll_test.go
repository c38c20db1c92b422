package unique

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An encoding that a newer server may write is refused with the setting that turns it off.
func TestAnUnknownEncodingNamesTheServersSetting(t *testing.T) {
	t.Parallel()
	text := []byte("HYLL" + strings.Repeat("\x00", denseSize-4))
	_, err := Decode(string(text))
	require.NoError(t, err)
	text[len(magic)] = sparse + 1
	_, err = Decode(string(text))
	require.ErrorIs(t, err, ErrNotHYLL)
	require.ErrorContains(t, err, "encoding 2 is unknown")
	require.ErrorContains(t, err, "hll-dense-encoding")
}
