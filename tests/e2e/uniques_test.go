package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// unique is one estimate of an answer of /v1/uniques; Upper is nil if unknown.
type unique struct {
	Key, Window     string
	Estimate, Lower int64
	Upper           *int64
	Confidence      float64
	Complete        bool
}

func (u unique) String() string {
	upper := "unknown"
	if u.Upper != nil {
		upper = fmt.Sprint(*u.Upper)
	}
	return fmt.Sprintf("%s over %s: %d..%d..%s, complete %v", u.Key, u.Window, u.Lower, u.Estimate, upper, u.Complete)
}

// uniquesOf asks /v1/uniques.
func (s *system) uniquesOf(params string) ([]unique, error) {
	s.t.Helper()
	status, body, err := stack.Do(http.MethodGet, s.query.URL()+"/v1/uniques?"+params, nil)
	var out struct{ Uniques []unique }
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	return out.Uniques, err
}

// eventuallyUnique waits until the estimate of one counter in a day is as it should be.
func (s *system) eventuallyUnique(what, key string, right func(unique) bool) (got unique) {
	s.t.Helper()
	stack.Eventually(s.t, what, func() (bool, string) {
		found, err := s.uniquesOf("key=" + key + "&window=24h")
		if err != nil {
			return false, err.Error()
		}
		got = found[0]
		return right(got), got.String()
	})
	return got
}

// Hits that say who came are counted as unique values, through a killed worker and a Redis that has lost
// everything: the stream is read again, and the estimate is the same.
func TestUniquesAreEstimatedFromEndToEnd(t *testing.T) {
	t.Parallel()
	s := start(t)
	const visits, visitors = 3000, 1200
	now := time.Now()
	for from := 0; from < visits; from += 100 { // a hundred hits in each message
		var body strings.Builder
		for i := range 100 {
			at := now.Add(-time.Duration((from+i)*59%3000) * time.Second)
			fmt.Fprintf(&body, `{"key":"visitors","unique":"u-%d","ts":%d}`+"\n", (from+i)*7%visitors, at.UnixMilli())
		}
		s.send("hits.x", body.String())
	}
	s.send("hits.x", `[{"key":"few","unique":"ann"},{"key":"few","unique":"bob"},{"key":"few","unique":"ann","n":40},{"key":"few"},{"key":"plain","n":9}]`)
	s.awaitTotals(map[string]int64{"visitors": visits, "few": 43})
	whole := func(u unique) bool { return u.Upper != nil && u.Estimate > 0 }
	was := s.eventuallyUnique("the visitors", "visitors", whole)
	if was.Lower > visitors || *was.Upper < visitors || was.Confidence != 0.95 || was.Estimate < was.Lower || was.Estimate > *was.Upper || *was.Upper-was.Lower > visitors/20 {
		t.Errorf("%v; there were %d", was, visitors)
	}
	few, err := s.uniquesOf("key=few&key=plain&key=nobody&window=24h")
	if err != nil || len(few) != 3 {
		t.Fatal(few, err)
	}
	for i, want := range []int64{2, 0, 0} {
		if few[i].Estimate != want || few[i].Lower != want || few[i].Upper != nil && *few[i].Upper != want {
			t.Errorf("%v; want exactly %d", few[i], want)
		}
	}
	eventuallySays(t, s.query.URL()+"/v1/series?key=few&of=uniques&step=5m", http.StatusOK, `,2]`)

	// Nobody counts: how many more came is unknown.
	s.ingest.Kill()
	out := s.eventuallyUnique("an unknown upper bound", "visitors", func(u unique) bool { return u.Upper == nil })
	if out.Complete || out.Estimate != was.Estimate || out.Lower != was.Lower {
		t.Errorf("while nobody counts: %v, before %v", out, was)
	}
	s.send("hits.x", `{"key":"few","unique":"cid"}`)
	s.ingest.Start()
	s.eventuallyUnique("the third", "few", func(u unique) bool { return u.Upper != nil && u.Estimate == 3 })

	// Redis loses everything, and the stream is read again from its beginning.
	s.loseRedis()
	s.send("hits.x", `{"key":"after"}`)
	s.awaitTotals(map[string]int64{"after": 1, "visitors": visits})
	again := s.eventuallyUnique("the visitors again", "visitors", whole)
	if again.Estimate != was.Estimate || again.Lower != was.Lower || *again.Upper != *was.Upper {
		t.Errorf("after Redis lost all: %v, before %v", again, was)
	}
}
