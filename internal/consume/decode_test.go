package consume

import (
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tallyroll/internal/hit"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

var testLayout = func() window.Layout {
	tiers, err := window.ParseTiers(window.DefaultTiers)
	if err != nil {
		panic(err)
	}
	return window.Layout{Tiers: tiers, Shards: 4}
}()

const (
	// testStored is when the messages of these tests were stored: 2025-11-21T00:00:00Z.
	testStored = int64(1763683200000)
	day        = int64(24 * time.Hour / time.Millisecond)
)

func testDecoder() *hit.Decoder {
	return hit.NewDecoder(Limits{MaxAhead: 10 * time.Second, MaxHits: 5}.HitLimits(testLayout))
}

// The last moment that the coarsest tier's hash has not passed is held, and the next is too late.
func TestHitIsTooLateOnceTheCoarsestHashHasExpired(t *testing.T) {
	t.Parallel()
	hash := window.HashCounter([]byte("a"))
	at := testStored - 30*day
	for testLayout.Holds(hash, at, testStored) {
		at -= day / 4
	}
	held := sort.Search(int(testStored-at), func(ms int) bool { return !testLayout.Holds(hash, at, at+int64(ms)) })
	deadline := at + int64(held) // the first moment at which at is held no more
	for stored, want := range map[int64]int{deadline - 1: 1, deadline: 0} {
		hits, rejects := testDecoder().Decode("a", stored, fmt.Appendf(nil, `{"ts":%d}`, at))
		if len(hits) != want || len(rejects) != 1-want {
			t.Errorf("stored %d ms after the deadline: %d hits, rejects %+v", stored-deadline, len(hits), rejects)
		}
	}
}

// Of all the times that a hit can have, those count that a tier holds, under the counter's hash.
func TestHitsCountInTheTiersThatHoldTheirTime(t *testing.T) {
	t.Parallel()
	_, rejects := testDecoder().Decode("subject", testStored, fmt.Appendf(nil, `{"ts":%d}`, testStored-3*day*365-29_163))
	if want := "ts 1669075170837 (2022-11-21T23:59:30.837Z) is 3 years earlier than the hit was stored (2025-11-21T00:00:00Z); "; len(rejects) != 1 || !strings.HasPrefix(rejects[0].Detail, want) {
		t.Errorf("%+v, want %q", rejects, want)
	}
	for name, c := range map[string]struct {
		ts   string
		late bool
	}{
		"in seconds":                   {"1763683200", true},
		"that the coarsest tier holds": {fmt.Sprint(testStored - 30*day), false},
		"that no tier holds":           {fmt.Sprint(testStored - 98*day), true},
		"0":                            {"0", true},
		"before 1970":                  {"-1", true},
		"the first":                    {`"0001-01-01T00:00:00Z"`, true},
	} {
		hits, rejects := testDecoder().Decode("subject", testStored, []byte(`{"ts":`+c.ts+`}`))
		if c.late && (len(hits) != 0 || len(rejects) != 1 || rejects[0].Reason != hit.TooLate || !strings.Contains(rejects[0].Detail, testLayout.Tiers.Reach())) ||
			!c.late && (len(hits) != 1 || len(rejects) != 0) {
			t.Errorf("a time %s: hits %v, rejects %+v", name, hits, rejects)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		counter := rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "counter")
		at := rapid.OneOf(rapid.Int64Range(hit.MinTime, testStored), rapid.Int64Range(testStored-100*day, testStored)).Draw(t, "at")
		hits, rejects := testDecoder().Decode(counter, testStored, fmt.Appendf(nil, `{"ts":%d}`, at))
		hash := window.HashCounter([]byte(counter))
		if held := testLayout.Holds(hash, at, testStored); held != (len(hits) == 1) || held == (len(rejects) == 1) {
			t.Fatalf("held: %v; hits %v, rejects %+v", held, hits, rejects)
		}
		for _, h := range hits {
			if h.Hash != hash || h.At != at {
				t.Fatalf("%+v, want the hash %d and the time %d", h, hash, at)
			}
		}
	})
}
