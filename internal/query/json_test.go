package query

import (
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Buffers serve one answer after another. Nothing of one request may reach another.
func TestAnswersAtTheSameTime(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(onRecorder(t).handler())
	defer server.Close()
	ask := func(key string) string {
		resp, err := server.Client().Get(server.URL + "/v1/total?window=1h&key=" + key)
		if err != nil {
			t.Error(err)
			return ""
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			key := strings.Repeat(string(rune('a'+i)), 1+100*i)
			want := ask(key)
			for range 20 {
				if got := ask(key); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
		})
	}
	all.Wait()
}
