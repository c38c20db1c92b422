package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/hit"
)

// modelRule counts events with maps of encoding/json. It has the rule as it was drawn, not its YAML text.
type modelRule struct {
	each, time string
	when       map[string]any
	count      []modelCounter
}

type modelCounter struct {
	text, path string // the key is text.{path}
	n, unique  string
	optional   bool
}

func (m modelRule) String() string {
	out := "- stream: ORDERS\n  subject: orders.>\n"
	if m.each != "" {
		out += "  each: " + m.each + "\n"
	}
	if m.time != "" {
		out += "  time: " + m.time + "\n"
	}
	if len(m.when) > 0 {
		out += "  when:\n"
		for path, want := range m.when {
			text, _ := json.Marshal(want)
			out += "    " + path + ": " + string(text) + "\n"
		}
	}
	out += "  count:\n"
	for _, c := range m.count {
		out += fmt.Sprintf("    - key: %q\n", c.text+".{"+c.path+"}")
		if c.n != "" {
			out += "      n: " + c.n + "\n"
		}
		if c.unique != "" {
			out += fmt.Sprintf("      unique: %q\n", "u-{"+c.unique+"}")
		}
		if c.optional {
			out += "      optional: true\n"
		}
	}
	return out
}

// findInEvent follows a path from the event or the element.
func findInEvent(event, element any, path string) any {
	at := element
	rest, fromEvent := strings.CutPrefix(path, "^.")
	if fromEvent {
		at = event
	}
	for _, name := range strings.Split(rest, ".") {
		switch v := at.(type) {
		case map[string]any:
			at = v[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(v) {
				return nil
			}
			at = v[i]
		default:
			return nil
		}
	}
	return at
}

// countEvent counts one event.
func (m modelRule) countEvent(event any) (counted []string, skipped bool, reason hit.Reason) {
	elements := []any{event}
	if m.each != "" {
		array, ok := findInEvent(event, event, m.each).([]any)
		if !ok {
			return nil, false, hit.BadJSON
		}
		elements = array
	}
elements:
	for _, element := range elements {
		for path, want := range m.when {
			if fmt.Sprintf("%T%v", findInEvent(event, element, path), findInEvent(event, element, path)) != fmt.Sprintf("%T%v", want, want) {
				skipped = true
				continue elements
			}
		}
		at := now
		if m.time != "" {
			switch v := findInEvent(event, element, m.time).(type) {
			case string:
				parsed, err := time.Parse(time.RFC3339, v)
				if err != nil {
					return nil, false, hit.BadTime
				}
				at = parsed.UnixMilli()
			case json.Number:
				n, err := v.Int64()
				if err != nil {
					return nil, false, hit.BadTime
				}
				at = n
			default:
				return nil, false, hit.BadTime
			}
		}
		for _, c := range m.count {
			name, ok := modelText(findInEvent(event, element, c.path))
			n := int64(1)
			if !ok {
				return nil, false, hit.BadKey
			}
			if name == "" {
				if c.optional {
					continue
				}
				return nil, false, hit.BadKey
			}
			if strings.ContainsAny(name, "\n\u0085") {
				return nil, false, hit.BadKey
			}
			if c.n != "" {
				switch v := findInEvent(event, element, c.n).(type) {
				case nil:
					n = 0
				case string:
					n = -1
					if v == "" {
						n = 0
					}
				case json.Number:
					var err error
					n, err = v.Int64()
					if err != nil {
						n = -1
					}
				default:
					n = -1
				}
				if n == 0 && c.optional {
					continue
				}
				if n < 1 || n > 1<<40 {
					return nil, false, hit.BadCount
				}
			}
			unique := ""
			if c.unique != "" {
				value, ok := modelText(findInEvent(event, element, c.unique))
				switch {
				case ok && value == "" && c.optional:
					continue
				case !ok || value == "":
					return nil, false, hit.BadUnique
				}
				unique = "#u-" + value
			}
			switch {
			case at > now+10_000:
				return nil, false, hit.Future
			case at < now-30*24*3600*1000:
				return nil, false, hit.TooLate
			}
			counted = append(counted, fmt.Sprintf("%s.%s=%d@%d%s", c.text, name, n, min(at, now), unique))
		}
	}
	return counted, skipped, ""
}

// modelText returns the text of a value in a name or a unique value; empty if it is missing.
func modelText(value any) (text string, ok bool) {
	switch v := value.(type) {
	case nil:
		return "", true
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	case json.Number:
		return v.String(), !strings.ContainsAny(v.String(), ".eE")
	}
	return "", false
}

var (
	fieldNames = []string{"a", "b", "c", "0", "items"}
	paths      = []string{"a", "b", "c", "a.b", "a.0", "b.c", "items.0", "items.0.a", "items.1.b"}
	inEach     = []string{"a", "b", "c", "a.b", "^.a", "^.b.c"}
)

// drawValue draws JSON, mostly of the kinds that rules count.
func drawValue(t *rapid.T, depth int) any {
	kinds := 14
	if depth == 0 {
		kinds = 11
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0, 1, 2:
		return rapid.SampledFrom([]string{"x", "y", "é<\">\\", "", "a.b", "\n", "\u0085", "\ufffd", "😀"}).Draw(t, "text")
	case 3, 4, 5:
		return json.Number(strconv.FormatInt(rapid.SampledFrom([]int64{0, 1, 2, -3, 1 << 40, 1<<40 + 1}).Draw(t, "integer"), 10))
	case 6:
		return json.Number(rapid.SampledFrom([]string{"1.5", "1e2", "99999999999999999999"}).Draw(t, "number"))
	case 7:
		return rapid.Bool().Draw(t, "bool")
	case 8:
		return nil
	case 9:
		return json.Number(strconv.FormatInt(now+rapid.SampledFrom([]int64{0, -1000, 9999, 10_001, -31 * 24 * 3600 * 1000}).Draw(t, "ms"), 10))
	case 10:
		return time.UnixMilli(now - rapid.Int64Range(0, 5000).Draw(t, "ago")).UTC().Format(time.RFC3339Nano)
	case 11:
		return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) any { return drawValue(t, depth-1) }), 0, 3).Draw(t, "array")
	}
	out := map[string]any{}
	for _, name := range fieldNames {
		if rapid.IntRange(0, 2).Draw(t, "has "+name) > 0 {
			out[name] = drawValue(t, depth-1)
		}
	}
	if rapid.Bool().Draw(t, "has items") {
		out["items"] = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) any { return drawValue(t, depth-1) }), 0, 3).Draw(t, "items")
	}
	return out
}

func drawRule(t *rapid.T, i int) modelRule {
	var m modelRule
	available := paths
	if rapid.IntRange(0, 3).Draw(t, "each") == 0 {
		m.each, available = "items", inEach
	}
	if rapid.IntRange(0, 3).Draw(t, "time") == 0 {
		m.time = rapid.SampledFrom(available).Draw(t, "time")
	}
	if rapid.IntRange(0, 2).Draw(t, "when") == 0 {
		want := rapid.SampledFrom([]any{"x", true, json.Number("1")}).Draw(t, "want")
		m.when = map[string]any{rapid.SampledFrom(available).Draw(t, "when"): want}
	}
	for j := range rapid.IntRange(1, 3).Draw(t, "counters") {
		c := modelCounter{text: fmt.Sprintf("%d-%d", i, j), path: rapid.SampledFrom(available).Draw(t, "key"), optional: rapid.IntRange(0, 2).Draw(t, "optional") > 0}
		if rapid.IntRange(0, 2).Draw(t, "n") == 0 {
			c.n = rapid.SampledFrom(available).Draw(t, "n")
		}
		if rapid.IntRange(0, 2).Draw(t, "unique") == 0 {
			c.unique = rapid.SampledFrom(available).Draw(t, "unique of")
		}
		m.count = append(m.count, c)
	}
	return m
}

func TestRulesCountWhatAModelCounts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		var model []modelRule
		for i := range rapid.IntRange(1, 3).Draw(t, "rules") {
			m := drawRule(t, i)
			model = append(model, m)
			text.WriteString(m.String())
		}
		set, err := Parse([]byte(text.String()))
		if err != nil {
			t.Fatalf("%v\n%s", err, text.String())
		}
		events := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) any {
			return map[string]any{
				"a": drawValue(t, 1), "b": drawValue(t, 2), "c": drawValue(t, 0), "items": drawValue(t, 2),
			}
		}), 1, 4).Draw(t, "events")
		var want []string
		unmet := 0
		for item, event := range events {
			counted, skipped, reason := modelEvent(model, event)
			switch {
			case reason != "":
				want = append(want, fmt.Sprintf("%s/%d", reason, item))
			case skipped && len(counted) == 0:
				unmet++
			}
			want = append(want, counted...)
		}
		body, err := json.Marshal(events)
		require.NoError(t, err)
		hits, rejects, gotUnmet := NewDecoder(set.ForStream("ORDERS"), testLimits(1000)).Decode(Message{Subject: "orders.x", Stored: now, Body: body})
		var got []string
		for _, h := range hits {
			unique := ""
			if h.Unique != nil {
				unique = "#" + string(h.Unique)
			}
			got = append(got, fmt.Sprintf("%s=%d@%d%s", h.Counter, h.N, h.At, unique))
		}
		for _, r := range rejects {
			got = append(got, fmt.Sprintf("%s/%d", r.Reason, r.Item))
			if raw, _ := json.Marshal(events[r.Item]); !bytes.Equal(raw, r.Body) {
				t.Fatalf("reject %d has %s, want %s", r.Item, r.Body, raw)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || gotUnmet != unmet {
			t.Fatalf("%s\n%s\ngot  %v, %d unmet\nwant %v, %d unmet\n%+v", text.String(), body, got, gotUnmet, want, unmet, rejects)
		}
	})
}

// modelEvent counts by all rules, or rejects for the first that refuses.
func modelEvent(rules []modelRule, event any) (counted []string, skipped bool, reason hit.Reason) {
	for _, m := range rules {
		more, leaves, reason := m.countEvent(event)
		if reason != "" {
			return nil, false, reason
		}
		counted, skipped = append(counted, more...), skipped || leaves
	}
	return counted, skipped, ""
}

// drawObject draws an object of a caller: a hit as collect writes it, perhaps with a hostile name, an event,
// or neither.
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

// One caller's objects do not affect another caller's in the same message.
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
		decoder := NewDecoder(set.ForStream("ORDERS"), testLimits(most))
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
				break // a body that starts with 7 is not a list of objects
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
func TestAnEventOverTheLimitIsRejectedAlone(t *testing.T) {
	t.Parallel()
	set := mustParse(t, oneRule("each: x\ncount: [{key: a}]"))
	many := `{"x":[1,2,3,4,5,6,7,8,9,10,11]}`
	body := strings.Join([]string{`{"x":[1,2,3]}`, many, `{"x":[1,2,3,4]}`}, "\n")
	got := describeOutcome(NewDecoder(set.ForStream("ORDERS"), testLimits(10)).Decode(Message{Subject: "orders.eu.created", Stored: now, Body: []byte(body)}))
	require.Equal(t, got, "a=1 a=1 a=1 a=1 a=1 a=1 a=1 too_large/1:"+many)
}

// FuzzParse reads any file. What is accepted must decode; what is refused must be one line.
func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add(shopRule)
	f.Add(severalRules)
	f.Add(oneRule("each: items\ntime: ^.at\nwhen: {a: 1, subject.1: x}\ncount: [{key: \"{{{@this}}}\", n: q, unique: \"{^.a}\", optional: true}]"))
	f.Add("- &a [*a]\n")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := Parse([]byte(text))
		if err != nil {
			var bad *FileError
			if !errors.As(err, &bad) || strings.Contains(err.Error(), "\n") || !utf8.ValidString(err.Error()) {
				t.Fatalf("%q", err)
			}
			return
		}
		for _, r := range set.rules {
			d := NewDecoder(set.ForStream(strings.NewReplacer("*", "A", "?", "A").Replace(r.stream)), testLimits(100))
			subject := strings.NewReplacer("*", "x", ">", "y.z").Replace(r.filter.text)
			d.Decode(Message{Subject: subject, Stored: now, Body: []byte(order)})
		}
	})
}

// FuzzDecode decodes any body with rules for many paths. It compares names with what encoding/json finds.
func FuzzDecode(f *testing.F) {
	for _, body := range []string{order, `{"a":"x","b":{"c":1},"items":[{"a":true}]}`, "{}\n{}", "[{},{}]", `{"a":"\ud83d\ude00"}`, `{` + eventHead + `,"data":{"a":1}}`, `{` + eventHead + `,"data_base64":"eyJhIjoxfQ=="}`, ""} {
		f.Add(body)
	}
	const fields = "count: [{key: \"a.{a}\", optional: true}, {key: \"c.{b.c}\", n: b.n, optional: true}, {key: \"b.{b.0.a}\", optional: true}, {key: u, unique: \"{a}-{b.c}\", optional: true}]\n"
	texts := map[string]string{
		"json":   "- stream: S\n  subject: '>'\n" + indent(fields) + "- stream: S\n  subject: '>'\n  each: items\n  time: ^.t\n" + indent(fields),
		"single": "- stream: S\n  subject: '>'\n" + indent("count: [{key: \"{a}\"}]"),
		"cloud":  "- stream: S\n  subject: '>'\n  format: cloudevents\n" + indent(strings.NewReplacer("{b", "{data.b", "{a", "{data.a").Replace(fields)),
		"none":   "- stream: OTHER\n  subject: '>'\n" + indent(fields),
	}
	sets := map[string]*Set{}
	for name, text := range texts {
		sets[name] = mustParse(f, text)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for name, set := range sets {
			for _, h := range []headers{nil, {"ce-specversion": "1.0", "ce-type": "t", "ce-source": "s", "ce-id": body}} {
				d := NewDecoder(set.ForStream("S"), testLimits(50))
				m := Message{Subject: "s", Counter: "plain", Stored: now, Body: []byte(body)}
				if h != nil {
					m.Header = h.get
				}
				hits, rejects, _ := d.Decode(m)
				for _, one := range hits {
					if hit.CheckName(one.Counter) != nil || one.N < 1 || one.N > hit.MaxN || one.At > now || one.Hash != 7 || one.Unique != nil && hit.CheckUnique(one.Unique) != nil {
						t.Fatalf("%s: %+v", name, one)
					}
				}
				for _, r := range rejects {
					if !strings.Contains(body, string(r.Body)) || r.Detail == "" {
						t.Fatalf("%s: %+v is no part of %q", name, r, body)
					}
				}
				if name == "single" && len(hits) == 1 && len(rejects) == 0 {
					sameName(t, body, hits[0].Counter)
				}
				first := describeOutcome(hits, rejects, 0)
				hits, rejects, _ = d.Decode(m)
				if again := describeOutcome(hits, rejects, 0); first != again {
					t.Fatalf("%s: first %s, then %s", name, first, again)
				}
			}
		}
	})
}

// sameName compares a counter named by the field a with what encoding/json finds there.
func sameName(t *testing.T, body string, got []byte) {
	t.Helper()
	var event map[string]any
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.UseNumber()
	err := decoder.Decode(&event)
	if err != nil { // an array of one
		var events []map[string]any
		decoder = json.NewDecoder(strings.NewReader(body))
		decoder.UseNumber()
		err = decoder.Decode(&events)
		if err == nil && len(events) == 1 {
			event = events[0]
		}
	}
	if err != nil {
		if utf8.ValidString(body) {
			t.Fatalf("%q is no JSON, but it counted %s: %v", body, got, err)
		}
		return
	}
	want := ""
	switch v := event["a"].(type) {
	case string:
		want = v
	case json.Number:
		want = v.String()
		if want == "-0" {
			want = "0"
		}
	case bool:
		want = map[bool]string{true: "true", false: "false"}[v]
	}
	if !bytes.Equal(got, hit.Shorten([]byte(want))) {
		t.Fatalf("%q counted %q, want %q", body, got, want)
	}
}
