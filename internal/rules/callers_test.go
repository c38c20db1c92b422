package rules

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/hit"
)

// drawObject draws what a caller sends: a hit as collect writes it, with a hostile name or not, or an event, or what is
// neither.
func drawObject(t *rapid.T) string {
	switch rapid.IntRange(0, 5).Draw(t, "object") {
	case 0, 1, 2:
		name := rapid.SampledFrom([]string{"a", "specversion", `{"specversion":"1.0"}`, `","specversion":"1.0`, "],[", "é\\"}).Draw(t, "name")
		h := hit.Hit{Counter: []byte(name), N: rapid.Int64Range(1, 3).Draw(t, "n"), At: hit.NoTime}
		return string(h.AppendJSON(nil))
	case 3:
		return `{"specversion":"1.0","type":"t","source":"s","id":"1","data":{"x":"y"}}`
	case 4:
		return `{"specversion":"1.0","type":"t","data":{"x":[1,2,3,4,5,6,7,8,9,10,11,12]}}`
	}
	return rapid.SampledFrom([]string{`{"spec\u0076ersion":"1.0","key":"b"}`, `{"specversion":`, "{}", "7", `{"key":"a","specversion":null}`, `{"key":"\ud800"}`}).Draw(t, "other")
}

// What one caller sends decides nothing about what another one sends, though both are in one message.
func TestCallersSideBySide(t *testing.T) {
	t.Parallel()
	const most = 10
	rapid.Check(t, func(t *rapid.T) {
		rule := rapid.SampledFrom([]string{
			"format: cloudevents\ncount: [{key: \"{type}\"}, {key: all}]",
			"format: cloudevents\ncount: [{key: \"{data.x}\"}, {key: \"{id}\"}, {key: all}]",
			"count: [{key: \"{key}\"}, {key: all, n: n, optional: true}]",
		}).Draw(t, "rule")
		set, err := Parse([]byte(oneRule(rule)))
		require.NoError(t, err)
		decoder := NewDecoder(set.For("ORDERS"), testLimits(most))
		decode := func(objects []string) (out []string, unmet int) {
			body := []byte(strings.Join(objects, "\n"))
			hits, rejects, unmet := decoder.Decode(Message{Subject: "orders.eu.created", Counter: "plain", Stored: now, Body: body})
			for _, h := range hits {
				out = append(out, fmt.Sprintf("%s=%d@%d", h.Counter, h.N, h.At))
			}
			for _, r := range rejects {
				out = append(out, fmt.Sprintf("%s of %s: %s", r.Reason, bytes.TrimSpace(r.Body), r.Kind))
			}
			return out, unmet
		}
		var together, want []string
		wantUnmet := 0
		for len(together) < most {
			objects := rapid.SliceOfN(rapid.Custom(drawObject), 1, 3).Draw(t, "caller")
			if strings.HasPrefix(objects[0], "7") || len(together)+len(objects) > most {
				break // a body that begins with it is no list of objects
			}
			alone, unmet := decode(objects)
			together, want, wantUnmet = append(together, objects...), append(want, alone...), wantUnmet+unmet
		}
		if len(together) == 0 {
			return
		}
		got, unmet := decode(together)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || unmet != wantUnmet {
			t.Fatalf("%s\n%s\ntogether %q, %d unmet\napart    %q, %d unmet", rule, strings.Join(together, "\n"), got, unmet, want, wantUnmet)
		}
	})
}

// An event whose arrays do not fit is rejected alone.
func TestAnEventTooManyIsRejectedAlone(t *testing.T) {
	t.Parallel()
	set := mustParse(t, oneRule("each: x\ncount: [{key: a}]"))
	many := `{"x":[1,2,3,4,5,6,7,8,9,10,11]}`
	body := strings.Join([]string{`{"x":[1,2,3]}`, many, `{"x":[1,2,3,4]}`}, "\n")
	got := outcome(NewDecoder(set.For("ORDERS"), testLimits(10)).Decode(Message{Subject: "orders.eu.created", Stored: now, Body: []byte(body)}))
	require.Equal(t, got, "a=1 a=1 a=1 a=1 a=1 a=1 a=1 too_large/1:"+many)
}
