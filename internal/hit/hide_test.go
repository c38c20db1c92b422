package hit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestUniqueValueIsHidden(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		``: ``, `{"key":"a","n":0}`: `{"key":"a","n":0}`, "\xff": "\xff",
		`{"key":"a","unique":"secret"}`:                               `{"key":"a","unique":"…"}`,
		` { "unique" : "secret" , "key":"a","unique":["secret"] } `:   ` { "unique" : "…" , "key":"a","unique":"…" } `,
		`{"Unique":{"x":"secret"},"uniq":1.5,"uniques":null,"n":"x"}`: `{"Unique":"…","uniq":"…","uniques":"…","n":"x"}`,
		`{"\u0075niqu\u0065":"secret","key":"unique"}`:                `{"\u0075niqu\u0065":"…","key":"unique"}`,
		"{\"unique\":\"secret\xff\",\"key\":\"a\"}":                   `{"unique":"…","key":"a"}`,
		`{"key":"a","unique":"secret"`:                                `{"key":"a","…`,
		`{"key":"a","\u0055nique":"secret`:                            `{"key":"a","…`,
		`{"key":"a"}{"unique":"secret"}`:                              `{"key":"a"}{"…`,
		`[{"key":"a"},{"key":"b","unique":"secret"}]`:                 `[{"key":"a"},{"key":"b","…`,
		"{\"key\":\"a\",\"unique\":\"secret\"}\n{\"key\":\"a\"}":      `{"key":"a","…`,
	} {
		given := []byte(body)
		require.Equal(t, want, string(HideUnique(given)), body)
		require.Equal(t, body, string(given))
	}
}

// Whatever else is in an object: what is hidden is the value, and everything else stays.
func TestHidingAUniqueValueKeepsTheRest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.SampledFrom([]string{`"secret"`, `["secret",{"x":1}]`, `{"unique":"secret"}`, `17`, `null`, `"a\"secret"`}).Draw(t, "value")
		other, err := json.Marshal(rapid.String().Draw(t, "other"))
		require.NoError(t, err)
		fields := rapid.Permutation([]string{`"key":"a"`, fmt.Sprintf(`"x": [%s]`, other), "\"unique\" : \x00", `"y":{"z":{}}`}).Draw(t, "fields")
		object := "{" + strings.Join(fields, rapid.SampledFrom([]string{",", " ,\n"}).Draw(t, "between")) + "}"
		got := HideUnique([]byte(strings.Replace(object, "\x00", value, 1)))
		require.Equal(t, strings.Replace(object, "\x00", `"…"`, 1), string(got))
		cut := []byte(strings.Replace(object, "\x00", value, 1))
		cut = cut[:rapid.IntRange(0, len(cut)-1).Draw(t, "cut")]
		if shown := HideUnique(cut); bytes.Contains(shown, []byte("secret")) {
			t.Fatalf("%s shows the value of %s", shown, cut)
		}
	})
}
