package limit

import (
	"testing"
	"time"
)

// Redis is left alone if it fails. A key that alone is slow says nothing about the others.
func TestBreaker(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(worldStart)
	type event struct {
		key  string
		slow bool
	}
	const answers = "answers"
	for _, c := range []struct {
		name        string
		events      []event
		asks, asks2 bool // about a key, and about another one
	}{
		{"nothing", nil, true, true},
		{"two failures", []event{{"a", false}, {"a", true}}, true, true},
		{"one key is slow", []event{{"a", true}, {"a", true}, {"a", true}, {"a", true}}, false, true},
		{"several keys are slow", []event{{"a", true}, {"b", true}, {"a", true}}, false, false},
		{"a slow key, then another", []event{{"a", true}, {"a", true}, {"a", true}, {"b", true}}, false, false},
		{"the connection fails", []event{{"a", false}, {"a", false}, {"a", false}}, false, false},
		{"once it was the connection", []event{{"a", true}, {"a", false}, {"a", true}}, false, false},
		{"first it was the connection", []event{{"a", false}, {"a", true}, {"a", true}}, false, false},
		{"a success between", []event{{"a", false}, {"b", false}, {answers, false}, {"a", false}, {"b", false}}, true, true},
		{"a success at last", []event{{"a", false}, {"b", false}, {"b", false}, {answers, false}}, true, true},
		{"a success, then a slow key", []event{{"a", false}, {"b", false}, {answers, false}, {"a", true}, {"a", true}, {"a", true}}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b breaker
			for _, e := range c.events {
				if e.key == answers {
					b.answered()
				} else {
					b.failed(e.key, e.slow, now)
				}
			}
			if b.mayAsk("b", now) != c.asks2 || b.mayAsk("a", now) != c.asks {
				t.Errorf("Redis may be asked about a: %v, about b: %v", b.mayAsk("a", now), b.mayAsk("b", now))
			}
			later := now.Add(downFor)
			if !b.mayAsk("a", later) || b.mayAsk("a", later) && !c.asks {
				t.Error("after a while, not just one may ask")
			}
		})
	}
}
