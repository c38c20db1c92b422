package hit_test

import (
	"fmt"
	"time"

	"tallyroll/internal/hit"
)

// A message of three hits, one of which cannot be counted.
func Example() {
	decoder := hit.NewDecoder(hit.Limits{
		MaxAhead: 10 * time.Second,
		MaxHits:  10_000,
		Place:    func(counter []byte, at, stored int64) (hash uint64, late string) { return 0, "" }, // all times are held
	})
	const stored = 1763683200000 // 2025-11-21T00:00:00Z
	hits, rejects := decoder.Decode("shop.checkout", stored, []byte(`
		{"key":"/cart","n":3,"ts":"2025-11-20T23:59:59.5Z"}
		{"key":"/cart","n":1.5}
		{}`))
	for _, h := range hits {
		fmt.Printf("%s: %d at %s\n", h.Counter, h.N, time.UnixMilli(h.At).UTC().Format(time.RFC3339Nano))
	}
	for _, r := range rejects {
		fmt.Printf("item %d is %s: %s: %s\n", r.Item, r.Reason, r.Detail, r.Body)
	}
	// Output:
	// /cart: 3 at 2025-11-20T23:59:59.5Z
	// shop.checkout: 1 at 2025-11-21T00:00:00Z
	// item 1 is bad_count: n must be an integer from 1 to 1099511627776, not "1.5": {"key":"/cart","n":1.5}
}

// What a producer writes, a worker reads.
func ExampleHit_AppendJSON() {
	h := hit.Hit{Counter: []byte("/cart"), N: 3, At: hit.NoTime}
	fmt.Println(string(h.AppendJSON(nil)))
	h.At = 1763683200000
	fmt.Println(string(h.AppendJSON(nil)))
	// Output:
	// {"key":"/cart","n":3}
	// {"key":"/cart","n":3,"ts":1763683200000}
}
