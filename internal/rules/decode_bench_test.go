package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tallyroll/internal/hit"
	"tallyroll/internal/window"
)

// order is an event of some 500 bytes, as a shop may publish it.
const order = `{"id":"ord_01HZX8T7Q0","occurred_at":"2025-11-20T23:59:59.123Z","status":"paid","currency":"EUR","total":12995,"country":"de",` +
	`"customer":{"id":48213,"plan":"pro","email":"alice@example.com","address":{"street":"Lindenallee 12","city":"Köln","zip":"50667"}},` +
	`"items":[{"sku":"A-100","name":"Kettle, 1.7 l","quantity":1,"price":4995},{"sku":"B-220","name":"Cup \"Blue\"","quantity":4,"price":2000}],` +
	`"coupon":null,"meta":{"source":"web","ab":["x1","y2"],"user_agent":"Mozilla/5.0 (X11; Linux x86_64)"}}`

// BenchmarkDecode compares with hit.Decoder, which counts one hit for the same bytes (plain), and for an object that
// says only what it must (small). Both count one counter, as one-rule and small-rule do.
func BenchmarkDecode(b *testing.B) {
	tiers, err := window.ParseTiers(window.DefaultTiers)
	if err != nil {
		b.Fatal(err)
	}
	layout := window.Layout{Tiers: tiers, Shards: 16}
	limits := hit.Limits{MaxAhead: 10 * time.Second, MaxHits: 10_000, Place: func(counter []byte, at, stored int64) (uint64, string) {
		hash := window.HashCounter(counter)
		if layout.Holds(hash, at, stored) {
			return hash, ""
		}
		return hash, "too late"
	}}
	const one = "count: [{key: \"orders.{country}\"}]"
	const four = "time: occurred_at\nwhen: {status: paid}\ncount: [{key: orders}, {key: \"orders.{country}\"}, {key: \"orders.{country}.{customer.id}\", n: total}, {key: \"coupons.{coupon}\", optional: true}, {key: \"plan.{customer.plan}\"}]"
	for _, bench := range []struct {
		name, rule, body string
		hits             int
	}{
		{"small", "", `{"key":"orders.de","n":1}`, 1},
		{"small-rule", one, `{"country":"de","n":1}`, 1},
		{"plain", "", order, 1},
		{"one-rule", one, order, 1},
		{"four-counters", four, order, 4},
		{"each", "each: items\ncount: [{key: \"sku.{sku}\", n: quantity}]", order, 2},
		{"no-match", "count: [{key: a}]", `{"key":"orders.de","n":1}`, 1},
	} {
		b.Run(bench.name, func(b *testing.B) {
			body := []byte(bench.body)
			subject := "orders.web.created"
			if bench.name == "no-match" {
				subject = "orders.other"
			}
			var decode func() int
			if bench.rule == "" {
				d := hit.NewDecoder(limits)
				decode = func() int {
					hits, _ := d.Decode(subject, now, body)
					return len(hits)
				}
			} else {
				d := NewDecoder(mustParse(b, oneRule(bench.rule)).For("ORDERS"), limits)
				decode = func() int {
					hits, _, _ := d.Decode(Message{Subject: subject, Counter: subject, Stored: now, Body: body})
					return len(hits)
				}
			}
			if n := decode(); n != bench.hits {
				b.Fatalf("%d hits, want %d", n, bench.hits)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				decode()
			}
		})
	}
}

// BenchmarkSubjects decodes messages whose subjects are too many to be remembered.
func BenchmarkSubjects(b *testing.B) {
	for _, many := range []int{1, 100} {
		b.Run(fmt.Sprintf("rules%d", many), func(b *testing.B) {
			text := strings.Repeat("- {stream: ORDERS, subject: other.*, count: [{key: a}]}\n", many-1) + oneRule("count: [{key: \"a.{subject.1}\"}]")
			d := NewDecoder(mustParse(b, text).For("ORDERS"), testLimits(10))
			subjects := make([]string, 100_000)
			for i := range subjects {
				subjects[i] = fmt.Sprintf("orders.%d.created", i)
			}
			body := []byte("{}")
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				d.Decode(Message{Subject: subjects[i%len(subjects)], Stored: now, Body: body})
			}
		})
	}
}
