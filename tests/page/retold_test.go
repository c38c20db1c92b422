package page_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// retold is a service whose series are made up. All else is that of a real one.
type retold struct {
	*httptest.Server

	hits          func(key string, at time.Time, step time.Duration) int64
	countingSince time.Time
	completeFrom  time.Time // if set, steps before it may lack hits, and those before countingSince are left out
	late          time.Duration
	noSum         bool // of all hits, as for a token with prefixes

	mu    sync.Mutex
	asked []url.Values // the questions about series
}

func (s *system) retell(t *testing.T, hits func(key string, at time.Time, step time.Duration) int64) *retold {
	t.Helper()
	base, err := url.Parse(s.query.URL())
	require.NoError(t, err)
	r := &retold{hits: hits, countingSince: time.Now().Add(-400 * 24 * time.Hour)}
	real := httputil.NewSingleHostReverseProxy(base)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if q := req.URL.Query(); r.noSum && q.Has("prefix") && q.Get("prefix") == "" && !q.Has("group") {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"status":403,"detail":"the token allows counters of shop. only"}`))
			return
		}
		if req.URL.Path == "/v1/series" && !req.URL.Query().Has("group") {
			r.series(w, req.URL.Query())
			return
		}
		real.ServeHTTP(w, req)
	}))
	t.Cleanup(func() {
		r.CloseClientConnections() // the live ones never end
		r.Close()
	})
	return r
}

func (r *retold) series(w http.ResponseWriter, q url.Values) {
	r.mu.Lock()
	r.asked = append(r.asked, q)
	r.mu.Unlock()
	moment := func(name string) time.Time {
		milli, err := strconv.ParseInt(q.Get(name), 10, 64)
		if err != nil {
			return time.Now()
		}
		return time.UnixMilli(milli)
	}
	text := strings.NewReplacer("1d", "24h", "1w", "168h", "1mo", "720h").Replace(q.Get("step"))
	step, err := time.ParseDuration(text)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	asOf := time.Now().Add(-r.late)
	from, to := moment("from").Truncate(step), moment("to")
	if r.completeFrom.IsZero() && from.Before(r.countingSince) {
		from = r.countingSince.Truncate(step)
	}
	names := q["key"]
	if q.Has("prefix") {
		names = q["prefix"]
	}
	completeFrom := r.completeFrom.Add(step - 1).Truncate(step)
	all := []map[string]any{}
	for _, name := range names {
		points := [][2]int64{}
		for at := from; at.Before(to); at = at.Add(step) {
			points = append(points, [2]int64{at.UnixMilli(), r.hits(name, at, step)})
		}
		one := map[string]any{
			"key": name, "step": q.Get("step"), "as_of": asOf, "points": points, "counting_since": r.countingSince,
			"complete": r.late < 5*time.Second && r.completeFrom.Before(from) && !r.countingSince.After(from),
		}
		if open := asOf.Truncate(step); open.Before(to) {
			one["unfinished_from"] = open.UnixMilli()
		}
		if completeFrom.After(from) {
			one["complete_from"] = completeFrom.UnixMilli()
		}
		all = append(all, one)
	}
	var answer any = map[string]any{"step": q.Get("step"), "as_of": asOf, "series": all}
	if len(all) == 1 {
		answer = all[0]
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}
