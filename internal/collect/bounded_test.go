package collect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/web"
)

// Huge and strange values in every header, field and path are refused, if they are, in a few words.
func TestRefusalsAreShort(t *testing.T) {
	t.Parallel()
	const maxAnswer = 4 << 10
	h := offline(t, pageVariables...).handler()
	withTokens := offline(t, "COLLECT_TOKENS_FILE="+tokensOf(t, "secret may: [count], prefixes: [shop.]")).handler()
	asked := 0
	ask := func(what, method, path, body string, headers ...string) {
		t.Helper()
		for _, handler := range []http.Handler{h, withTokens} {
			r := httptest.NewRequest("POST", "http://collect.test/", strings.NewReader(body))
			path, query, _ := strings.Cut(path, "?")
			r.Method, r.URL.Path, r.URL.RawQuery = method, path, query
			r.Header.Set("Authorization", "Bearer secret")
			for i := 0; i < len(headers); i += 2 {
				r.Header[http.CanonicalHeaderKey(headers[i])] = []string{headers[i+1]}
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			asked++
			var p web.Problem
			if w.Code >= 400 && (w.Body.Len() > maxAnswer || !utf8.Valid(w.Body.Bytes()) || json.Unmarshal(w.Body.Bytes(), &p) != nil || p.Detail == "") {
				t.Errorf("%s %.100q: status %d, %d bytes: %.300q", what, path, w.Code, w.Body.Len(), w.Body)
			}
		}
	}
	event := []string{"ce-specversion", "1.0", "ce-type", "a", "ce-source", "/a", "ce-id", "1"}
	for _, value := range []string{
		strings.Repeat("a", 6000), strings.Repeat("9", 6000), strings.Repeat("\u202e", 2000), strings.Repeat("\x00", 6000), strings.Repeat("\xff", 6000), strings.Repeat(`"\`, 3000),
		strings.Repeat("%", 6000), strings.Repeat(",", 6000), strings.Repeat("{", 6000), strings.Repeat("👩", 1500), `"` + strings.Repeat("a", 6000), "",
	} {
		text, err := json.Marshal(value)
		require.NoError(t, err)
		raw := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
		for _, header := range []string{keyHeader, "Content-Type", "Content-Encoding", "Origin", "Referer", "Authorization", requestOrigin, "User-Agent"} {
			ask(header, "POST", hitsPath, `{"key":"a"}`, header, value)
			ask(header, "POST", beaconPath, `{"key":"a"}`, "Origin", "https://shop.example.com", header, value)
			ask(header, "GET", gifPath+"?key=a", "", "Origin", "https://shop.example.com", header, value)
			ask(header, "OPTIONS", hitsPath, "", header, value)
		}
		for _, name := range []string{"ce-type", "ce-source", "ce-id", "ce-time", "ce-specversion", "ce-datacontenttype", "ce-" + value, "ce-x"} {
			ask(name, "POST", hitsPath, "x", append(event, name, value)...)
		}
		for _, v := range []string{string(text), raw, strings.Repeat("1", 6000), "-" + strings.Repeat("1", 6000), "[" + raw + "]", "{" + raw + ":1}", value} {
			for _, field := range []string{"key", "n", "ts", "id", "count", "value", value} {
				name, err := json.Marshal(field)
				require.NoError(t, err)
				for _, body := range []string{fmt.Sprintf(`{%s:%s}`, name, v), fmt.Sprintf(`{"key":"a",%s:%s}`, name, v), fmt.Sprintf(`[{"key":"shop.a"},{%s:%s}`, name, v)} {
					ask(field, "POST", hitsPath, body)
					ask(field, "POST", beaconPath, body, "Origin", "https://shop.example.com")
				}
			}
			for _, field := range []string{"specversion", "type", "source", "id", "time", "data", "data_base64", "datacontenttype", value} {
				name, err := json.Marshal(field)
				require.NoError(t, err)
				body := fmt.Sprintf(`{%s:%s,"specversion":"1.0","type":"a","source":"/a","id":"1"}`, name, v)
				ask(field, "POST", hitsPath, body, "Content-Type", structuredType)
				ask(field, "POST", hitsPath, "["+body+"]", "Content-Type", batchType)
				ask(field, "POST", hitsPath, strings.Replace(body, `,"specversion":"1.0"`, "", 1), "Content-Type", structuredType)
			}
		}
		for _, query := range []string{"key=" + value, "key=a&n=" + value, value + "=1", value, "key=a&key=" + value, "key=%ff" + value} {
			ask(query, "GET", gifPath+"?"+query, "", "Origin", "https://shop.example.com")
		}
		for _, path := range []string{"/", "/v1/", "/v1/hits/", "/docs/"} {
			ask(path, "GET", path+value, "")
		}
		ask("method", "M"+value, hitsPath, "")
	}
	t.Logf("%d requests", asked)
}
