package query

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/answer"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// What an explanation names is in Redis, and adds up to the total.
func TestExplain(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	var hits []asking.Sample
	for i := range 200 {
		hits = append(hits, asking.Hits("shop.a", now.Add(-time.Duration(i)*7*time.Minute), int64(i+1)), asking.Hits("shop.b", now.Add(-time.Duration(i)*time.Minute), 3))
	}
	asking.Seed(t, redis.Client(), now, hits...)
	s := onRedis(t, redis.URL(), now)
	h := s.handler()
	earlier := fmt.Sprint(now.Add(-20*time.Minute - 17*time.Second).UnixMilli())
	cut := 0
	for _, query := range []string{"key=shop.a&key=shop.b&key=never", "prefix=shop.", "key=shop.a&at=" + earlier, "prefix=shop.&group=2&at=" + earlier} {
		for _, window := range []string{"10m", "1h", "5h", "20h"} {
			target := "/v1/total?window=" + window + "&" + query
			got, plain := answered(t, asking.Ask(h, http.MethodGet, target+"&explain=1", "")), answered(t, asking.Ask(h, http.MethodGet, target, ""))
			for i, total := range got.Totals {
				want := plain.Totals[i]
				if want.Explained != nil || total.Total != want.Total || total.Lower != want.Lower || total.Upper != want.Upper || total.Explained == nil {
					t.Fatalf("%s: %+v, want %+v and an explanation", target, total, want)
				}
				var sum answer.SumGroup
				for _, e := range total.Explain {
					cut += checkExplanation(t, redis.Client(), e, now, &sum)
				}
				if sum.Total != total.Total || sum.Lower != total.Lower || sum.Upper != total.Upper {
					t.Errorf("%s: the cells add up to %+v, the total is %+v", target, sum, total)
				}
			}
		}
	}
	if cut == 0 {
		t.Error("no window cut a cell")
	}
	posted := answered(t, asking.Ask(h, http.MethodPost, "/v1/total", `{"keys":["shop.a"],"windows":["1h"],"explain":true}`))
	if posted.Totals[0].Explained == nil || len(posted.Totals[0].Explain) != 1 {
		t.Errorf("%+v", posted)
	}
	asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/total?key=shop.a&window=1h&explain=2", ""), http.StatusBadRequest)
	s.answers.MaxExplain = 20
	p := asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/total?key=shop.b&window=1h&explain=1", ""), http.StatusRequestEntityTooLarge)
	if !strings.Contains(p.Detail, "at most 20 are allowed (QUERY_MAX_EXPLAIN)") {
		t.Error(p.Detail)
	}
}

// checkExplanation reads what an explanation names, adds it to a sum, and returns how many cells are cut.
func checkExplanation(t *testing.T, client redis.UniversalClient, e answer.Explanation, asOf time.Time, sum *answer.SumGroup) (cut int) {
	t.Helper()
	if len(e.Cursors) != 1 || e.Cursors[0].Stream != "HITS" || e.Cursors[0].Seq != 1 || !e.AsOf.Equal(asOf.Truncate(time.Millisecond)) {
		t.Errorf("%s: shard as of %v, cursors %+v", e.Key, e.AsOf, e.Cursors)
	}
	if seq, err := client.HGet(t.Context(), e.Cursors[0].Key, "seq").Result(); err != nil || seq != "1" {
		t.Errorf("%s has the sequence %s: %v", e.Cursors[0].Key, seq, err)
	}
	if len(e.Hashes) == 0 {
		t.Errorf("%s: no hash was read", e.Key)
	}
	for _, h := range e.Hashes {
		for _, c := range h.Cells {
			stored, err := client.HGet(t.Context(), h.Key, c.Field).Result()
			if err != nil || stored != strconv.FormatInt(c.Count, 10) {
				t.Errorf("%s has %s in the field %s, want %d: %v", h.Key, stored, c.Field, c.Count, err)
			}
			if c.Upper != c.Count || c.Lower != c.Count && c.Lower != 0 || !c.From.Before(c.To) {
				t.Errorf("%s: %+v", h.Key, c)
			}
			if c.Lower == 0 {
				cut++
			}
			sum.Total, sum.Lower, sum.Upper = sum.Total+c.Total, sum.Lower+c.Lower, sum.Upper+answer.Bound(c.Upper)
		}
	}
	return cut
}
