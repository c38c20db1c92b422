package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// erase asks until the number that it confirms is the one that there is.
func erase(t *testing.T, query *stack.Service, prefix string) (erased int) {
	t.Helper()
	confirm := 0
	stack.Eventually(t, "an erasure", func() (bool, string) {
		status, body, err := stack.Do(http.MethodDelete, query.URL()+"/v1/counters?"+url.Values{"prefix": {prefix}, "confirm": {fmt.Sprint(confirm)}}.Encode(), nil)
		var answer struct {
			Erased int
			Detail string
		}
		if err == nil {
			err = json.Unmarshal(body, &answer)
		}
		if status == http.StatusConflict {
			_, err = fmt.Sscanf(answer.Detail, "%d counters begin with", &confirm)
		}
		if err != nil {
			t.Fatalf("status %d, %v: %s", status, err, body)
		}
		erased = answer.Erased
		return status == http.StatusOK, string(body)
	})
	return erased
}

func TestErasedCountersStayErasedWhileHitsComeAndWorkersRestart(t *testing.T) {
	t.Parallel()
	s := start(t)
	eraser := stack.Query(t, s.redis, "QUERY_ERASE=on")
	const counters, rounds, each = 20, 4, 200
	var shop, kept []string
	for i := range counters {
		shop, kept = append(shop, fmt.Sprintf("shop.%d", i)), append(kept, fmt.Sprintf("kept.%d", i))
	}
	lines := strings.Repeat(strings.Join(slices.Concat(shop, kept), "\n")+"\n", each)
	in, out := io.Pipe()
	_, published := s.begin("publish", in, "--format", "lines")
	for range rounds {
		_, err := io.WriteString(out, lines)
		require.NoError(t, err)
		erase(t, eraser, "shop.")
	}
	restart := func(last string) {
		t.Helper()
		s.ingest.Stop()
		s.ingest.Start()
		s.send("hits."+last, "")
		s.awaitTotal(last, 1)
		s.awaitAllCounted()
	}
	out.Close()
	require.Contains(t, published(), fmt.Sprintf("published %d hits", 2*counters*rounds*each))
	restart("first")
	check := func(what string, keys []string, want int64) {
		t.Helper()
		for _, total := range stack.PostTotal(t, s.query.URL(), keys, []string{"1h", "24h"}).Totals {
			if total.Total != want {
				t.Errorf("%s: %s has %d in %s, want %d", what, total.Key, total.Total, total.Window, want)
			}
		}
	}
	check("others", kept, rounds*each)
	erase(t, eraser, "shop.")
	check("erased", shop, 0)
	restart("second")
	check("after a restart", shop, 0)
	for _, key := range shop {
		s.send("hits.anything", fmt.Sprintf(`{"key":%q,"n":7}`, key))
	}
	s.awaitAllCounted()
	check("later hits", shop, 7)
	check("others", kept, rounds*each)
	require.Equal(t, counters, erase(t, eraser, "shop."), "all are listed again")
}
