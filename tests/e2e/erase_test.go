package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

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

func TestCountersAreErasedWhileHitsCome(t *testing.T) {
	t.Parallel()
	s := start(t)
	eraser := stack.Query(t, s.redis, "QUERY_ERASE=on")
	const counters, rounds, each = 20, 12, 200
	var shop, kept []string
	for i := range counters {
		shop, kept = append(shop, fmt.Sprintf("shop.%d", i)), append(kept, fmt.Sprintf("kept.%d", i))
	}
	lines := strings.Repeat(strings.Join(append(append([]string{}, shop...), kept...), "\n")+"\n", each)
	in, out := io.Pipe()
	published := make(chan string, 1)
	go func() { published <- s.publish(in, "--format", "lines") }()
	for range rounds {
		if _, err := io.WriteString(out, lines); err != nil {
			t.Fatal(err)
		}
		erase(t, eraser, "shop.")
	}
	s.ingest.Stop()
	s.ingest.Start()
	erase(t, eraser, "shop.")
	out.Close()
	if got := <-published; !strings.HasPrefix(got, fmt.Sprintf("published %d hits", 2*counters*rounds*each)) {
		t.Fatalf("publish ends with %q", got)
	}
	s.send("hits.last", "")
	stack.EventuallyTotal(t, s.query.URL(), "last", "24h", 1)
	s.allCounted()
	check := func(what string, keys []string, least, most int64) {
		t.Helper()
		for _, key := range keys {
			hour, day := stack.TotalOf(t, s.query.URL(), key, "1h"), stack.TotalOf(t, s.query.URL(), key, "24h")
			if hour.Total != day.Total || day.Total < least || day.Total > most {
				t.Errorf("%s: %s has %d in an hour and %d in a day, want %d to %d", what, key, hour.Total, day.Total, least, most)
			}
		}
	}
	check("others", kept, rounds*each, rounds*each)
	check("erased on the way", shop, 0, rounds*each)
	erase(t, eraser, "shop.")
	check("erased", shop, 0, 0)
	s.ingest.Stop()
	s.ingest.Start()
	s.send("hits.next", "")
	stack.EventuallyTotal(t, s.query.URL(), "next", "24h", 1)
	check("after a restart", shop, 0, 0)
	for _, key := range shop {
		s.send("hits.anything", fmt.Sprintf(`{"key":%q,"n":7}`, key))
	}
	for _, key := range shop {
		stack.EventuallyTotal(t, s.query.URL(), key, "24h", 7)
	}
	check("later hits", shop, 7, 7)
	check("others", kept, rounds*each, rounds*each)
	for _, key := range stack.Scan(t, s.redis.Client(), "*:h:*shop.*") {
		if ttl := s.redis.Client().TTL(t.Context(), key).Val(); ttl <= 0 || ttl > 50*24*time.Hour {
			t.Errorf("%s expires in %v", key, ttl)
		}
	}
	if n := erase(t, eraser, "shop."); n != counters {
		t.Errorf("%d are erased, want %d: all are listed again", n, counters)
	}
}
