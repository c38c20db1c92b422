package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
)

// now is when messages are stored.
const now = int64(1_763_683_200_000)

// order is an event of some 500 bytes, as a shop may publish it.
const order = `{"id":"ord_01HZX8T7Q0","occurred_at":"2025-11-20T23:59:59.123Z","status":"paid","currency":"EUR","total":12995,"country":"de",` +
	`"customer":{"id":48213,"plan":"pro","email":"alice@example.com","address":{"street":"Lindenallee 12","city":"Köln","zip":"50667"}},` +
	`"items":[{"sku":"A-100","name":"Kettle, 1.7 l","quantity":1,"price":4995},{"sku":"B-220","name":"Cup \"Blue\"","quantity":4,"price":2000}],` +
	`"coupon":null,"meta":{"source":"web","ab":["x1","y2"],"user_agent":"Mozilla/5.0 (X11; Linux x86_64)"}}`

// testLimits know a tier of 30 days.
func testLimits(maxHits int) hit.Limits {
	return hit.Limits{MaxAhead: 10 * time.Second, MaxHits: maxHits, Place: func(_ []byte, at, stored int64) (uint64, string) {
		if stored-at > 30*24*3600*1000 {
			return 0, "it is older than 30d"
		}
		return 7, ""
	}}
}

func mustParse(t testing.TB, text string) *Set {
	t.Helper()
	set, err := Parse([]byte(text))
	require.NoError(t, err, text)
	return set
}

// oneRule is a file with one rule for orders.*.created of ORDERS.
func oneRule(fields string) string {
	return "- stream: ORDERS\n  subject: orders.*.created\n" + indent(fields)
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ") + "\n"
}

// headers are those of a message.
type headers map[string]string

func (h headers) get(name string) string { return h[name] }

// outcome is what a message became, in words: counter=n@milliseconds before it was stored and #unique value, reason/item:body, and ~ for an
// event that a condition left out.
func outcome(hits []hit.Hit, rejects []hit.Reject, unmet int) string {
	var out []string
	for _, h := range hits {
		word := fmt.Sprintf("%s=%d", h.Counter, h.N)
		if h.At != now {
			word += fmt.Sprintf("@%d", now-h.At)
		}
		if h.Unique != nil {
			word += "#" + string(h.Unique)
		}
		if h.Hash != 7 {
			word += " without hash"
		}
		out = append(out, word)
	}
	for _, r := range rejects {
		out = append(out, fmt.Sprintf("%s/%d:%s", r.Reason, r.Item, r.Body))
	}
	out = append(out, slices.Repeat([]string{"~"}, unmet)...)
	return strings.Join(out, " ")
}
