package rules

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

const good = "- stream: ORDERS\n  subject: orders.*.created\n  count:\n    - key: orders\n"

// TestMistakesAreNamedWithTheirLine has the line and a part of the message for each mistake.
func TestMistakesAreNamedWithTheirLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text string
		line       int
		want       string
	}{
		{"empty", "", 0, "it is empty: allowed is a list of rules, each with stream, subject, format, time, each, when, count"},
		{"only a comment", "# nothing\n", 0, "it is empty"},
		{"null", "~\n", 1, "allowed is a list of rules"},
		{"empty list", "[]\n", 1, "allowed is a list of rules"},
		{"mapping", "rules: []\n", 1, "allowed is a list of rules"},
		{"two documents", good + "---\n" + good, 5, "a second YAML document"},
		{"tab", "- stream: ORDERS\n\tsubject: x\n", 2, "it is no YAML"},
		{"open quote", "- stream: \"ORDERS\n  subject: x\n", 3, "it is no YAML"},
		{"text as a rule", good + "- hello\n", 5, "a rule is no mapping: allowed is stream, subject"},
		{"unknown field", good + "  streams: X\n", 5, `unknown field "streams": allowed is stream, subject, format, time, each, when, count`},
		{"a field twice", good + "  stream: X\n", 5, "stream: it is there twice"},
		{"no stream", "- subject: a\n  count: [{key: a}]\n", 1, "stream: it is missing"},
		{"no subject", "- stream: A\n  count: [{key: a}]\n", 1, "subject: it is missing"},
		{"no count", "- stream: A\n  subject: a\n", 1, "count: it is missing"},
		{"empty field", good + "  each:\n", 5, "each: it is empty"},
		{"empty text", good + "  each: ''\n", 5, "each: it is empty"},
		{"number as text", good + "  each: 5\n", 5, `each: "5" is no text: put it in quotes`},
		{"list as text", good + "  each: [a]\n", 5, "each: allowed is a single value"},
		{"bad glob", strings.Replace(good, "ORDERS", "ORD[", 1), 1, `stream: "ORD[": allowed is the name of a stream, or a glob such as ORDERS*`},
		{"several streams", strings.Replace(good, "ORDERS", "A,B", 1), 1, "allowed is the name of a stream"},
		{"stream with a dot", strings.Replace(good, "ORDERS", "A.B", 1), 1, "allowed is the name of a stream"},
		{"empty token", strings.Replace(good, "orders.*.created", "orders..created", 1), 2, "subject: \"orders..created\": allowed are tokens"},
		{"> not at the end", strings.Replace(good, "orders.*.created", "orders.>.created", 1), 2, "allowed are tokens"},
		{"half a wildcard", strings.Replace(good, "orders.*.created", "orders.a*", 1), 2, "allowed are tokens"},
		{"space in a subject", strings.Replace(good, "orders.*.created", "orders. x", 1), 2, "allowed are tokens"},
		{"unknown format", good + "  format: xml\n", 5, `format: "xml": allowed is json, cloudevents, none`},
		{"bad time", good + "  time: a..b\n", 5, `time: "a..b": path "a..b": a name is empty: allowed are names`},
		{"time from the subject", good + "  time: subject.1\n", 5, "for a field subject of the event write ^.subject"},
		{"each from the subject", good + "  each: subject\n", 5, "for a field subject of the event write ^.subject"},
		{"each this", good + "  each: '@this'\n", 5, "@this"},
		{"time with none", good + "  format: none\n  time: at\n", 6, "with format none the body is not looked at"},
		{"each with none", good + "  format: none\n  each: at\n", 6, "with format none the body is not looked at"},
		{"query", good + "  each: items.#(price>5)#\n", 5, `"#" is not allowed here`},
		{"modifier", good + "  each: items|@reverse\n", 5, `"|" is not allowed here`},
		{"modifier first", good + "  each: '@reverse'\n", 5, `"@" is not allowed here`},
		{"wildcard in a path", good + "  each: item*\n", 5, `"*" is not allowed here`},
		{"JSON lines", good + "  each: ..0\n", 5, "a name is empty"},
		{"backslash at the end", good + "  each: a\\\n", 5, `is not allowed here`},
		{"nothing after ^.", good + "  each: ^.\n", 5, "what follows ^. is missing"},
		{"deep path", good + "  each: a" + strings.Repeat(".a", 32) + "\n", 5, "33 names: at most 32 are allowed"},
		{"long path", good + "  each: " + strings.Repeat("a", 513) + "\n", 5, "513 bytes: at most 512 are allowed"},
		{"when as text", good + "  when: paid\n", 5, "when: allowed is a mapping or a list"},
		{"when empty", good + "  when: {}\n", 5, "when: allowed are paths"},
		{"when of null", good + "  when:\n    status: ~\n", 6, "when: status: allowed are paths, each with the value"},
		{"when of a float", good + "  when: {status: 1.5}\n", 5, "when: status: allowed are paths"},
		{"when of a hex number", good + "  when: {status: 0x10}\n", 5, "when: status: allowed are paths"},
		{"when of a list", good + "  when: {status: [a, b]}\n", 5, "when: status: allowed are paths"},
		{"when twice", good + "  when: {status: a, status: b}\n", 5, `"status" is there twice`},
		{"when with a bad path", good + "  when: {a|b: a}\n", 5, `"|" is not allowed here`},
		{"when with a number", good + "  when: {1: a}\n", 5, `when: "1" is no path: put it in quotes`},
		{"when of another wildcard", good + "  when: {subject.2: a}\n", 5, "the subject orders.*.created has 1 wildcards"},
		{"when with none", good + "  format: none\n  when: {a: 1}\n", 6, "with format none the body is not looked at"},
		{"count as text", "- stream: A\n  subject: a\n  count: orders\n", 3, "count: allowed is a mapping or a list"},
		{"count empty", "- stream: A\n  subject: a\n  count: []\n", 3, "count: allowed is a list of counters"},
		{"counter as text", good + "    - orders2\n", 5, "a counter is no mapping: allowed is key, n, unique, optional"},
		{"counter without a key", good + "    - n: 5\n", 5, "key: it is missing"},
		{"unknown field of a counter", good + "    - key: a\n      by: b\n", 6, `unknown field "by": allowed is key, n, unique, optional`},
		{"the same key twice", good + "    - key: orders\n", 5, `key: "orders" is the key on line 4, too`},
		{"empty key", good + "    - key: ''\n", 5, "key: it is empty"},
		{"long key", good + "    - key: " + strings.Repeat("k", 513) + "\n", 5, "its text has 513 bytes: the name of a counter has 1 to 512"},
		{"control character in a key", good + "    - key: \"a\\tb\"\n", 5, "control character"},
		{"key as mapping", good + "    - key: {country}\n", 5, "key: allowed is a single value"},
		{"open brace", good + "    - key: a.{b\n", 5, "a { without a }"},
		{"closing brace", good + "    - key: a.b}\n", 5, "a } without a {"},
		{"empty braces", good + "    - key: a.{}\n", 5, "a path is empty"},
		{"wildcard that is not there", good + "    - key: a.{subject.3}\n", 5, `"subject.3": the subject orders.*.created has 1 wildcards`},
		{"wildcard 0", good + "    - key: a.{subject.0}\n", 5, "has 1 wildcards"},
		{"a field of subject", good + "    - key: a.{subject.name}\n", 5, "for a field subject of the event write ^.subject"},
		{"@this without each", good + "    - key: 'a.{@this}'\n", 5, "the element of each, which the rule has not"},
		{"path with none", good + "    - key: a.{b}\n  format: none\n", 5, "with format none the body is not looked at"},
		{"amount with none", good + "    - key: a\n      n: b\n  format: none\n", 6, "with format none the body is not looked at"},
		{"many pieces", good + "    - key: '" + strings.Repeat("{a}", 33) + "'\n", 5, "33 pieces of text and values: at most 32 are allowed"},
		{"amount 0", good + "    - key: a\n      n: 0\n", 6, "n: \"0\": allowed is a path, or a whole number from 1 to 1099511627776"},
		{"amount with fraction", good + "    - key: a\n      n: 1.5\n", 6, "allowed is a path, or a whole number"},
		{"amount too large", good + "    - key: a\n      n: 1099511627777\n", 6, "allowed is a path, or a whole number"},
		{"amount true", good + "    - key: a\n      n: true\n", 6, "allowed is a path, or a whole number"},
		{"amount as list", good + "    - key: a\n      n: [1]\n", 6, "n: allowed is a single value"},
		{"unique without a value", good + "    - key: a\n      unique: visitor\n", 6, `unique: "visitor": it is the same for all events: allowed is text with at least one value in braces`},
		{"unique empty", good + "    - key: a\n      unique: ''\n", 6, "unique: it is empty"},
		{"unique as mapping", good + "    - key: a\n      unique: {user.id}\n", 6, "unique: allowed is a single value"},
		{"unique of a bad path", good + "    - key: a\n      unique: '{a|b}'\n", 6, `unique: "{a|b}": path "a|b": "|" is not allowed here`},
		{"unique of another wildcard", good + "    - key: a\n      unique: '{subject.2}'\n", 6, "the subject orders.*.created has 1 wildcards"},
		{"unique with none", good + "    - key: a\n      unique: '{b}'\n  format: none\n", 6, "with format none the body is not looked at"},
		{"unique of @this without each", good + "    - key: a\n      unique: '{@this}'\n", 6, "the element of each, which the rule has not"},
		{"optional as text", good + "    - key: a\n      optional: maybe\n", 6, "optional: allowed is true or false"},
		{"optional as True", good + "    - key: a\n      optional: True\n", 6, "optional: allowed is true or false"},
		{"alias", good + "  each: *a\n", 5, "an alias is not allowed"},
		{"anchor and alias", "- stream: &a A\n  subject: *a\n  count: []\n", 2, "an alias is not allowed"},
		{"merge", good + "  <<: {format: json}\n", 5, `unknown field "<<"`},
		{"formats", good + "- stream: O*\n  subject: orders.>\n  format: none\n  count: [{key: a}]\n", 5, "format: it is none here, but json in the rule on line 1, which can match the same messages"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(test.text))
			var bad *FileError
			if !errors.As(err, &bad) {
				t.Fatalf("%v\n%s", err, test.text)
			}
			if bad.Line != test.line || !strings.Contains(bad.Message, test.want) || strings.Contains(bad.Error(), "\n") {
				t.Errorf("%s\ngot  %v\nwant line %d: %s", test.text, bad, test.line, test.want)
			}
		})
	}
}

func TestAFileIsBounded(t *testing.T) {
	t.Parallel()
	var counters strings.Builder
	for i := range MaxCounters {
		fmt.Fprintf(&counters, "    - key: orders%d\n", i)
	}
	full := "- stream: ORDERS\n  subject: orders.*.created\n  count:\n" + counters.String()
	var conditions []string
	for i := range MaxWhen {
		conditions = append(conditions, fmt.Sprintf("a%d: 1", i))
	}
	for _, test := range []struct{ name, good, bad, want string }{
		{"rules", strings.Repeat(good, MaxRules), strings.Repeat(good, MaxRules+1), "line 4001: this is rule 1001: at most 1000 are allowed"},
		{"counters", full, full + "    - key: one more\n", "line 104: count: this is counter 101 of the rule: at most 100 are allowed"},
		{"conditions", good + "  when: {" + strings.Join(conditions, ", ") + "}\n", good + "  when: {" + strings.Join(conditions, ", ") + ", b: 1}\n", "line 5: when: it has 33 conditions: at most 32 are allowed"},
		{"bytes", good + strings.Repeat("#", MaxFile-len(good)), good + strings.Repeat("#", MaxFile-len(good)+1), "it has 1048577 bytes: at most 1048576 are allowed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			mustParse(t, test.good)
			_, err := Parse([]byte(test.bad))
			if err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

// TestBombsEndQuickly reads files that make a careless reader slow or large. The test's own deadline bounds it.
func TestBombsEndQuickly(t *testing.T) {
	t.Parallel()
	var aliases strings.Builder
	aliases.WriteString("- &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 30; i++ {
		fmt.Fprintf(&aliases, "- &a%d [%s*a%d]\n", i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), i-1)
	}
	for name, text := range map[string]string{
		"aliases":  aliases.String(),
		"lists":    strings.Repeat("[", MaxFile),
		"mappings": strings.Repeat("{a: ", MaxFile/4),
		"dashes":   strings.Repeat("- ", MaxFile/2),
		"key":      good + "    - key: \"" + strings.Repeat("{", MaxFile/2) + "\"\n",
		"wildcard": good + "    - key: \"{subject." + strings.Repeat("1", MaxFile/2) + "}\"\n",
		"anchor":   "- &" + strings.Repeat("a", MaxFile/2) + " a",
		"when":     good + "  when: {\"a\\n" + strings.Repeat("b", MaxFile/2) + "\": ~}\n",
		"path":     good + "  each: \"" + strings.Repeat("a.", MaxFile/2-100) + "a\"\n",
	} {
		_, err := Parse([]byte(text))
		if err == nil || len(err.Error()) > 4096 || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error is %.5000v", name, err)
		}
	}
}

func TestASetIsWhatWasGiven(t *testing.T) {
	t.Parallel()
	set := mustParse(t, good)
	// printf -- … | sha256sum
	if string(set.Text()) != good || set.Fingerprint() != "221f09ff68b499eb" || set.Len() != 1 {
		t.Errorf("text %q, fingerprint %s, %d rules", set.Text(), set.Fingerprint(), set.Len())
	}
}
