package rules

import (
	"strings"
	"testing"

	"tallyroll/internal/hit"
)

func TestEventsAreCountedAsTheRuleSays(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 600)
	cut := string(hit.Shorten([]byte(long)))
	for _, test := range []struct {
		name, rule, body, want string
	}{
		{"constant name", "count: [{key: orders}]", `{}`, "orders=1"},
		{"value", `count: [{key: "orders.{country}"}]`, `{"country":"de"}`, "orders.de=1"},
		{"nested values", `count: [{key: "orders.{country}.{customer.id}", n: quantity}]`, `{"country":"de","customer":{"id":17},"quantity":3}`, "orders.de.17=3"},
		{"true as text", `count: [{key: "gift.{gift}"}]`, `{"gift":true}`, "gift.true=1"},
		{"minus zero is zero", `count: [{key: "at.{x}"}]`, `{"x":-0}`, "at.0=1"},
		{"a large integer", `count: [{key: "at.{x}"}]`, `{"x":123456789012345678901234567890}`, "at.123456789012345678901234567890=1"},
		{"subject", `count: [{key: "{subject}/{subject.1}"}]`, `{}`, "orders.eu.created/eu=1"},
		{"a field named subject", `count: [{key: "{^.subject}"}]`, `{"subject":"s"}`, "s=1"},
		{"braces", `count: [{key: "{{x}}{x}"}]`, `{"x":1}`, "{x}1=1"},
		{"array index", `count: [{key: "{items.1.sku}"}]`, `{"items":[{"sku":"a"},{"sku":"b"}]}`, "b=1"},
		{"a number as a name", `count: [{key: "{m.1}"}]`, `{"m":{"1":"one"}}`, "one=1"},
		{"a dot in a name", `count: [{key: '{m\.x}'}]`, `{"m":{"x":"wrong"},"m.x":"right"}`, "right=1"},
		{"a brace in a name", `count: [{key: '{m\}x}'}]`, `{"m}x":"right"}`, "right=1"},
		{"path and path below", `count: [{key: "{a.0}"}, {key: "x.{a}", optional: true}, {key: "{a.b}", optional: true}]`, `{"a":{"0":"zero","b":"c"}}`, "bad_key/0:" + `{"a":{"0":"zero","b":"c"}}`},
		{"the last field of a name counts", `count: [{key: "{a}"}]`, `{"a":"x","a":"y"}`, "y=1"},
		{"also if it is no object", `count: [{key: "x.{a.b}", optional: true}, {key: x}]`, `{"a":{"b":"x"},"a":1}`, "x=1"},
		{"escaped name of a field", `count: [{key: "{country}"}]`, `{"\u0063ountry":"de"}`, "de=1"},
		{"escapes in a value", `count: [{key: "{c}"}]`, `{"c":"a\u00e4\"\/\ud83d\ude00"}`, "aä\"/😀=1"},
		{"half of a surrogate pair", `count: [{key: "{c}"}]`, `{"c":"\ud83d"}`, `bad_key/0:{"c":"\ud83d"}`},
		{"U+FFFD as itself", `count: [{key: "{c}"}]`, "{\"c\":\"\ufffd\"}", "\ufffd=1"},
		{"control character", `count: [{key: "{c}"}]`, `{"c":"a\nb"}`, `bad_key/0:{"c":"a\nb"}`},
		{"control character far behind", `count: [{key: "{c}"}]`, `{"c":"` + long + `\n"}`, `bad_key/0:{"c":"` + long + `\n"}`},
		{"not UTF-8", `count: [{key: "{c}"}]`, "{\"c\":\"\xff\"}", "bad_key/0:{\"c\":\"\xff\"}"},
		{"object", `count: [{key: "{c}"}]`, `{"c":{}}`, `bad_key/0:{"c":{}}`},
		{"array", `count: [{key: "{c}"}]`, `{"c":[]}`, `bad_key/0:{"c":[]}`},
		{"null", `count: [{key: "{c}"}]`, `{"c":null}`, `bad_key/0:{"c":null}`},
		{"float", `count: [{key: "{c}"}]`, `{"c":1.0}`, `bad_key/0:{"c":1.0}`},
		{"exponent", `count: [{key: "{c}"}]`, `{"c":1e3}`, `bad_key/0:{"c":1e3}`},
		{"missing", `count: [{key: "{c}"}]`, `{}`, `bad_key/0:{}`},
		{"empty", `count: [{key: "{c}"}]`, `{"c":""}`, `bad_key/0:{"c":""}`},
		{"optional and missing", `count: [{key: a}, {key: "{c}", optional: true}]`, `{}`, "a=1"},
		{"optional and null", `count: [{key: a}, {key: "{c}", optional: true}]`, `{"c":null}`, "a=1"},
		{"optional and empty", `count: [{key: a}, {key: "{c}", optional: true}]`, `{"c":""}`, "a=1"},
		{"optional and an object", `count: [{key: a}, {key: "{c}", optional: true}]`, `{"c":{}}`, `bad_key/0:{"c":{}}`},
		{"fixed amount", "count: [{key: a, n: 5}]", `{}`, "a=5"},
		{"amount 0", "count: [{key: a, n: x}]", `{"x":0}`, `bad_count/0:{"x":0}`},
		{"amount missing", "count: [{key: a, n: x}]", `{}`, `bad_count/0:{}`},
		{"amount too large", "count: [{key: a, n: x, optional: true}]", `{"x":1099511627777}`, `bad_count/0:{"x":1099511627777}`},
		{"largest amount", "count: [{key: a, n: x}]", `{"x":1099511627776}`, `a=1099511627776`},
		{"amount as text", "count: [{key: a, n: x}]", `{"x":"5"}`, `bad_count/0:{"x":"5"}`},
		{"amount with fraction", "count: [{key: a, n: x}]", `{"x":5.0}`, `bad_count/0:{"x":5.0}`},
		{"negative amount", "count: [{key: a, n: x, optional: true}]", `{"x":-1}`, `bad_count/0:{"x":-1}`},
		{"optional amount 0", "count: [{key: a, n: x, optional: true}, {key: b}]", `{"x":0}`, "b=1"},
		{"optional amount missing", "count: [{key: a, n: x, optional: true}, {key: b}]", `{}`, "b=1"},
		{"unique", `count: [{key: v, unique: "{user.id}"}, {key: w}]`, `{"user":{"id":"u-17"}}`, "v=1#u-17 w=1"},
		{"unique of text and values", `count: [{key: v, n: 2, unique: "{subject.1}/{a}.{b}"}]`, `{"a":17,"b":true}`, "v=2#eu/17.true"},
		{"unique with escapes", `count: [{key: v, unique: "{c}"}]`, `{"c":"a\u00e4\ud83d\ude00\n"}`, "v=1#aä😀\n"},
		{"unique of each", `{each: tags, count: [{key: v, unique: "{@this}"}]}`, `{"tags":["a","b"]}`, "v=1#a v=1#b"},
		{"unique too long", `count: [{key: v, unique: "{c}"}]`, `{"c":"` + long + `"}`, "v=1#" + cut},
		{"unique missing", `count: [{key: a}, {key: v, unique: "{c}"}]`, `{}`, "bad_unique/0:{}"},
		{"unique null", `count: [{key: v, unique: "{c}"}]`, `{"c":null}`, `bad_unique/0:{"c":null}`},
		{"unique empty", `count: [{key: v, unique: "x{c}"}]`, `{"c":""}`, `bad_unique/0:{"c":""}`},
		{"unique an object", `count: [{key: v, unique: "{c}", optional: true}]`, `{"c":{}}`, `bad_unique/0:{"c":{}}`},
		{"unique a float", `count: [{key: v, unique: "{c}"}]`, `{"c":1.5}`, `bad_unique/0:{"c":1.5}`},
		{"unique with half of a surrogate pair", `count: [{key: v, unique: "{c}"}]`, `{"c":"\ud83d"}`, `bad_unique/0:{"c":"\ud83d"}`},
		{"unique not UTF-8", `count: [{key: v, unique: "{c}"}]`, "{\"c\":\"\xff\"}", "bad_unique/0:{\"c\":\"\xff\"}"},
		{"optional and unique missing", `count: [{key: a}, {key: v, unique: "{c}", optional: true}]`, `[{},{"c":null},{"c":""},{"c":1}]`, "a=1 a=1 a=1 a=1 v=1#1"},
		{"optional, unique missing and amount bad", `count: [{key: v, n: x, unique: "{c}", optional: true}]`, `{"x":-1}`, `bad_count/0:{"x":-1}`},
		{"all or nothing", `count: [{key: a}, {key: "{c}"}]`, `[{"c":"x"},{}]`, "a=1 x=1 bad_key/1:{}"},
		{"time as milliseconds", "time: at\ncount: [{key: a}]", `{"at":1763683199000}`, "a=1@1000"},
		{"time as text", "time: at\ncount: [{key: a}]", `{"at":"2025-11-21T00:59:58+01:00"}`, "a=1@2000"},
		{"a little ahead", "time: at\ncount: [{key: a}]", `{"at":1763683209999}`, "a=1"},
		{"ahead", "time: at\ncount: [{key: a}]", `{"at":1763683210001}`, `future/0:{"at":1763683210001}`},
		{"too late", "time: at\ncount: [{key: a}]", `{"at":1}`, `too_late/0:{"at":1}`},
		{"time missing", "time: at\ncount: [{key: a}]", `{}`, `bad_time/0:{}`},
		{"time null", "time: at\ncount: [{key: a}]", `{"at":null}`, `bad_time/0:{"at":null}`},
		{"time with fraction", "time: at\ncount: [{key: a}]", `{"at":1763683199.5}`, `bad_time/0:{"at":1763683199.5}`},
		{"time as other text", "time: at\ncount: [{key: a}]", `{"at":"noon"}`, `bad_time/0:{"at":"noon"}`},
		{"time true", "time: at\ncount: [{key: a}]", `{"at":true}`, `bad_time/0:{"at":true}`},
		{"time out of range", "time: at\ncount: [{key: a}]", `{"at":-99999999999999999}`, `bad_time/0:{"at":-99999999999999999}`},
		{"each", `{each: items, count: [{key: "{sku}", n: q}]}`, `{"items":[{"sku":"a","q":2},{"sku":"b","q":1}]}`, "a=2 b=1"},
		{"each with the event", `{each: items, time: ^.at, count: [{key: "{^.country}.{sku}"}]}`, `{"at":1763683199000,"country":"de","items":[{"sku":"a"}]}`, "de.a=1@1000"},
		{"each of text", `{each: tags, count: [{key: "tag.{@this}"}]}`, `{"tags":["a","b"]}`, "tag.a=1 tag.b=1"},
		{"each, one is bad", `{each: items, count: [{key: "{sku}"}]}`, `{"items":[{"sku":"a"},{"sku":null}]}`, `bad_key/0:{"items":[{"sku":"a"},{"sku":null}]}`},
		{"each of nothing", `{each: items, count: [{key: a}]}`, `{"items":[]}`, ""},
		{"each missing", `{each: items, count: [{key: a}]}`, `{}`, "bad_json/0:{}"},
		{"each of an object", `{each: items, count: [{key: a}]}`, `{"items":{}}`, `bad_json/0:{"items":{}}`},
		{"each when", `{each: items, when: {gift: true}, count: [{key: "{sku}"}]}`, `[{"items":[{"sku":"a","gift":true},{"sku":"b"}]},{"items":[{"sku":"c"}]}]`, "a=1 ~"},
		{"when text", `{when: {status: paid}, count: [{key: a}]}`, `[{"status":"paid"},{"status":"open"},{},{"status":null},{"status":"p\u0061id"}]`, "a=1 a=1 ~ ~ ~"},
		{"when integer", `{when: {v: 2}, count: [{key: a}]}`, `[{"v":2},{"v":"2"},{"v":2.0},{"v":20}]`, "a=1 ~ ~ ~"},
		{"when boolean", `{when: {v: false}, count: [{key: a}]}`, `[{"v":false},{"v":"false"},{"v":true}]`, "a=1 ~ ~"},
		{"when both", `{when: {a: 1, b.c: x}, count: [{key: a}]}`, `[{"a":1,"b":{"c":"x"}},{"a":1},{"b":{"c":"x"}}]`, "a=1 ~ ~"},
		{"when subject", `{when: {subject.1: eu}, count: [{key: a}]}`, `{}`, "a=1"},
		{"when another subject", `{when: {subject.1: us}, count: [{key: a}]}`, `{}`, "~"},
		{"what is left out need not be right", `{when: {a: 1}, time: at, count: [{key: "{b}"}]}`, `{"at":"noon"}`, "~"},
		{"half of a pair is not U+FFFD", "{when: {a: \"\ufffd\"}, count: [{key: a}]}", `{"a":"\ud83d"}`, "~"},
		{"empty text", `{when: {a: ""}, count: [{key: a}]}`, `[{"a":""},{}]`, "a=1 ~"},
		{"lines", "count: [{key: a}]", "{}\n\n{\"x\":1}\n", "a=1 a=1"},
		{"over several lines", `count: [{key: "{x}"}]`, "{\n\"x\":1\n}", "1=1"},
		{"a bad one among others", `count: [{key: "{x}"}]`, `[{"x":1},{"x":},{"x":3}]`, `1=1 3=1 bad_json/1:{"x":}`},
		{"no object", "count: [{key: a}]", `[1,{}]`, "a=1 bad_json/0:1"},
		{"not JSON after the value", `count: [{key: "{x}"}]`, `{"x":1,"y":tru}`, `bad_json/0:{"x":1,"y":tru}`},
		{"more follows", `count: [{key: "{x}"}]`, `{"x":1}}`, `bad_json/0:{"x":1}}`},
		{"array not closed", `count: [{key: "{x}"}]`, `[{"x":1}`, `bad_json/0:{"x":1}`},
		{"empty body", "count: [{key: a}]", " \n", "bad_json/0: \n"},
		{"empty array", "count: [{key: a}]", "[]", ""},
		{"no text", "count: [{key: a}]", "hello", "bad_json/0:hello"},
		{"format none", `{format: none, count: [{key: "{subject.1}"}]}`, "hello", "eu=1"},
		{"format none without a body", `{format: none, count: [{key: "{subject.1}"}]}`, "", "eu=1"},
		{"too many events", "count: [{key: a}]", "[{},{},{},{},{},{},{},{},{},{},{}]", "too_large/0:[{},{},{},{},{},{},{},{},{},{},{}]"},
		{"more counters than the bound", "count: [{key: a}, {key: b}, {key: c}, {key: d}]", "[{},{},{}]", strings.TrimSpace(strings.Repeat("a=1 b=1 c=1 d=1 ", 3))},
		{"as many as allowed", "count: [{key: a}, {key: b}, {key: c}, {key: d}, {key: e}]", "[{},{}]", "a=1 b=1 c=1 d=1 e=1 a=1 b=1 c=1 d=1 e=1"},
		{"too many elements", "{each: x, count: [{key: a}]}", `{"x":[1,2,3,4,5,6,7,8,9,10,11]}`, `too_large/0:{"x":[1,2,3,4,5,6,7,8,9,10,11]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			set := mustParse(t, ruleText(test.rule))
			d := NewDecoder(set.For("ORDERS"), testLimits(10))
			for range 2 { // what the first has left does not change the second
				got := outcome(d.Decode(Message{Subject: "orders.eu.created", Counter: "plain", Stored: now, Body: []byte(test.body)}))
				if got != test.want {
					t.Fatalf("%s\n%s\ngot  %s\nwant %s", test.rule, test.body, got, test.want)
				}
			}
		})
	}
}

// ruleText is a file with one rule, whose other fields are lines or a flow mapping.
func ruleText(fields string) string {
	if strings.HasPrefix(fields, "{") {
		return "- {stream: ORDERS, subject: orders.*.created, " + fields[1:] + "\n"
	}
	return oneRule(fields)
}

// A refusal names the path of a unique value and what is wrong with it, and never the value itself.
func TestRefusalsHideUniqueValues(t *testing.T) {
	t.Parallel()
	set := mustParse(t, ruleText(`count: [{key: v, unique: "{a}/{user.id}"}]`))
	d := NewDecoder(set.For("ORDERS"), testLimits(10))
	for value, want := range map[string]string{
		`1234.5`:            "unique: user.id is a number with fraction or exponent: allowed are text",
		`{"x":"1234.5"}`:    "unique: user.id is an object",
		`["1234.5"]`:        "unique: user.id is an array",
		`"1234.5\ud83d"`:    "unique: user.id is text: allowed are text without halves of surrogate pairs",
		"\"1234.5\xff\"":    "unique: it is not valid UTF-8 (line 3)",
		`""`:                "unique: user.id is empty (line 3; optional: true would leave the counter out)",
		`null,"b":"1234.5"`: "unique: user.id is null",
	} {
		_, rejects, _ := d.Decode(Message{Subject: "orders.eu.created", Stored: now, Body: []byte(`{"a":"secret","user":{"id":` + value + `}}`)})
		if len(rejects) != 1 || rejects[0].Reason != hit.BadUnique || !strings.Contains(rejects[0].Detail, want) {
			t.Errorf("%s: %+v, want %s", value, rejects, want)
			continue
		}
		if detail := rejects[0].Detail; strings.Contains(detail, "1234") || strings.Contains(detail, "secret") {
			t.Errorf("%s: the detail has the value: %s", value, detail)
		}
	}
}

// Rules that differ in unique alone are different versions: a replay would count otherwise.
func TestUniqueMakesAnotherVersion(t *testing.T) {
	t.Parallel()
	versions := map[string]string{}
	for _, fields := range []string{`count: [{key: v}]`, `count: [{key: v, unique: "{a}"}]`, `count: [{key: v, unique: "{b}"}]`} {
		fingerprint := mustParse(t, ruleText(fields)).Fingerprint()
		if other, there := versions[fingerprint]; there {
			t.Errorf("%s and %s are one version", fields, other)
		}
		versions[fingerprint] = fields
	}
}
