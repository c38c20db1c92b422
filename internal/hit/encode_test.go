package hit

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAppendedJSONIsThatOfEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Hit{
			Counter: []byte(rapid.OneOf(rapid.String(), rapid.StringOf(rapid.RuneFrom([]rune(`"\/<>&`+"\x00\x1f\x7f\u2028\ufffd\U0001f600a")))).Draw(t, "key")),
			N:       rapid.Int64Range(1, MaxN).Draw(t, "n"),
			At:      rapid.OneOf(rapid.Just(int64(NoTime)), rapid.Int64Range(MinTime, MaxTime)).Draw(t, "ts"),

			Excluded: rapid.Bool().Draw(t, "excluded"),
		}
		body := h.AppendJSON(nil)
		var got map[string]any
		decoder := json.NewDecoder(strings.NewReader(string(body)))
		decoder.UseNumber()
		require.NoErrorf(t, decoder.Decode(&got), "%s", body)
		want := map[string]any{"key": string(h.Counter)}
		if h.N != 1 {
			want["n"] = json.Number(jsonInt(h.N))
		}
		if h.At != NoTime {
			want["ts"] = json.Number(jsonInt(h.At))
		}
		if h.Excluded {
			want["all"] = false
		}
		require.Len(t, got, len(want), body)
		for k, v := range want {
			require.Equal(t, v, got[k], body)
		}
	})
}

// Any bytes at all must come out as encoding/json would read them back.
func FuzzAppendString(f *testing.F) {
	f.Add([]byte(`a"b\c`))
	f.Add([]byte("\x00\xff\xe2\x80\xa8"))
	f.Fuzz(func(t *testing.T, s []byte) {
		reference, err := json.Marshal(string(s))
		require.NoError(t, err)
		var got, want string
		require.NoErrorf(t, json.Unmarshal(appendString(nil, s), &got), "%q", s)
		require.NoError(t, json.Unmarshal(reference, &want))
		require.Equal(t, want, got)
	})
}

func jsonInt(n int64) string {
	b, _ := json.Marshal(n)
	return string(b)
}
