package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/web"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// erased returns how many counters a call has erased.
func erased(t *testing.T, h http.Handler, query string) int {
	t.Helper()
	resp := asking.Ask(h, http.MethodDelete, "/v1/counters?"+query, "")
	var out struct{ Erased *int }
	if text := asking.ReadAll(t, resp); resp.StatusCode != http.StatusOK || json.Unmarshal(text, &out) != nil || out.Erased == nil {
		t.Fatalf("%s: status %d: %s", query, resp.StatusCode, text)
	}
	return *out.Erased
}

func TestCountersAreErased(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), asking.Now()
	hits := []asking.Sample{asking.Hits("other", now.Add(-time.Minute), 2)}
	for i := range 30 {
		hits = append(hits, asking.Hits(fmt.Sprintf("shop.%02d", i), now.Add(-time.Minute), 3))
	}
	asking.Seed(t, server.Client(), now, hits...)
	s := onRedis(t, server.URL(), now)
	log := new(asking.Log)
	s.log = zerolog.New(log)
	h := s.handler()
	require.Equal(t, 1, erased(t, h, "key=shop.07"))
	for _, query := range []string{"key=shop.07", "key=nobody", "prefix=nobody&confirm=0"} {
		require.Zero(t, erased(t, h, query), query)
	}
	for _, c := range []struct{ confirm, erased, says string }{{"30", "", "29 counters begin with"}, {"29", "29", ""}, {"29", "", "0 counters begin with"}, {"0", "0", ""}} {
		query := "prefix=shop.&confirm=" + c.confirm
		if c.says == "" {
			require.Equal(t, c.erased, fmt.Sprint(erased(t, h, query)))
			continue
		}
		p := asking.Refused(t, asking.Ask(h, http.MethodDelete, "/v1/counters?"+query, ""), http.StatusConflict)
		require.Equal(t, web.NotConfirmed.Type(), p.Type)
		require.Contains(t, p.Detail, c.says)
	}
	require.Empty(t, stack.Scan(t, server.Client(), "*shop*"))
	require.Contains(t, string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/v1/counters", ""))), `"counters":["other"]`)
	got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?key=other&key=shop.08&window=10m", "")).Totals
	require.Equal(t, []int64{2, 0}, []int64{int64(got[0].Total), int64(got[1].Total)})
	for _, want := range []string{`"from":"192.0.2.1","key":"shop.07","erased":1,"message":"counters erased"`, `"prefix":"shop.","erased":29,"message":"counters erased"`} {
		require.Contains(t, log.String(), want)
	}
}

// Mistakes are in testdata/refused.txt, tokens in TestLogNamesTheTokenThatChangesSomething.
func TestNothingIsErasedIfErasingIsOffOrForAForeignPage(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	for _, headers := range [][]string{form, sameSite} {
		p := asking.Refused(t, asking.Ask(s.handler(), http.MethodDelete, "/v1/counters?key=a", "", headers...), http.StatusForbidden)
		require.Equal(t, web.ForeignOrigin.Type(), p.Type)
	}
	s.erases = false
	p := asking.Refused(t, asking.Ask(s.handler(), http.MethodDelete, "/v1/counters?key=a", ""), http.StatusForbidden)
	require.Equal(t, web.EraseOff.Type(), p.Type)
	require.Contains(t, p.Detail, "QUERY_ERASE")
}

// A Redis user who may only read is told what it lacks. Those of query-erase are enough.
func TestErasingNeedsTheRightsOfQueryErase(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), asking.Now()
	asking.Seed(t, server.Client(), now, asking.Hits("a", now.Add(-time.Minute), 3))
	as := func(user string) http.Handler {
		rights := stack.RightsOf(t, user)
		for i, word := range rights {
			rights[i] = strings.Replace(word, "~tallyroll:", "~"+asking.Namespace+":", 1)
		}
		stack.NewUser(t, server, user, "s3cret", rights...)
		return onRedis(t, strings.Replace(server.URL(), "redis://", "redis://"+user+":s3cret@", 1), now).handler()
	}
	reader := as("query")
	p := asking.Refused(t, asking.Ask(reader, http.MethodDelete, "/v1/counters?key=a", ""), http.StatusServiceUnavailable)
	require.Equal(t, web.RightsMissing.Type(), p.Type)
	require.Contains(t, p.Detail, "rights of query-erase")
	require.NotEmpty(t, stack.Scan(t, server.Client(), asking.Namespace+":*:h:*:a"))
	require.Equal(t, 1, erased(t, as("query-erase"), "key=a"))
}
