package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/hit"
	"tallyroll/tests/cases"
	"tallyroll/tests/schema"
)

// now is when messages are stored.
const now = int64(1_763_683_200_000)

// order is an event of some 500 bytes, as a shop may publish it.
const order = `{"id":"ord_01HZX8T7Q0","occurred_at":"2025-11-20T23:59:59.123Z","status":"paid","currency":"EUR","total":12995,"country":"de",` +
	`"customer":{"id":48213,"plan":"pro","email":"alice@example.com","address":{"street":"Lindenallee 12","city":"Köln","zip":"50667"}},` +
	`"items":[{"sku":"A-100","name":"Kettle, 1.7 l","quantity":1,"price":4995},{"sku":"B-220","name":"Cup \"Blue\"","quantity":4,"price":2000}],` +
	`"coupon":null,"meta":{"source":"web","ab":["x1","y2"],"user_agent":"Mozilla/5.0 (X11; Linux x86_64)"}}`

// testLimits have a tier of 30 days.
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
	require.NoError(t, schema.Check(Schema(), []byte(text)), text)
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

// describeOutcome describes the outcome of a message: counter=n@milliseconds before it was stored and #unique
// value per hit, reason/item:body per reject, and ~ per event that a condition skipped.
func describeOutcome(hits []hit.Hit, rejects []hit.Reject, unmet int) string {
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

func TestEventsAreCountedAsTheRuleSays(t *testing.T) {
	t.Parallel()
	cases.Check(t, "decode", func(t *testing.T, rule, body string) string {
		d := NewDecoder(mustParse(t, ruleText(rule)).ForStream("ORDERS"), testLimits(10))
		m := Message{Subject: "orders.eu.created", Counter: "plain", Stored: now, Body: []byte(body)}
		first := explain(t, d, m)
		require.Equal(t, first, explain(t, d, m), "the second decoding of %s", body)
		return first
	})
}

// explain returns the outcome of a message and the rejects' details, which quote no secret.
func explain(t *testing.T, d *Decoder, m Message) string {
	t.Helper()
	hits, rejects, unmet := d.Decode(m)
	out := describeOutcome(hits, rejects, unmet)
	for _, r := range rejects {
		require.NotContains(t, r.Detail, "secret")
		out += "\n" + r.Detail
	}
	return out
}

// ruleText returns a file with one rule, whose other fields are lines or a flow mapping.
func ruleText(fields string) string {
	if strings.HasPrefix(fields, "{") {
		return "- {stream: ORDERS, subject: orders.*.created, " + fields[1:] + "\n"
	}
	return oneRule(fields)
}

// Rules that differ only in unique are different versions, because a replay would count differently.
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

const severalRules = `- stream: ORDERS*
  subject: orders.>
  count: [{key: "all.{subject.1}"}]
- stream: ORDERS
  subject: orders.*.created
  when: {status: paid}
  count: [{key: "paid.{subject.1}.{country}"}]
- stream: ORDERS
  subject: orders.eu.*
  when: {status: open}
  count: [{key: "eu.{subject.1}"}]
- stream: OTHER
  subject: orders.>
  count: [{key: other}]
`

func TestAllRulesThatMatchAreApplied(t *testing.T) {
	t.Parallel()
	decoders := map[string]*Decoder{} // what a decoder remembers of other subjects has no effect
	cases.Check(t, "several", func(t *testing.T, section, body string) string {
		stream, subject, _ := strings.Cut(section, ", ")
		if decoders[stream] == nil {
			decoders[stream] = NewDecoder(mustParse(t, severalRules).ForStream(stream), testLimits(10))
		}
		m := Message{Subject: subject, Counter: "plain", Stored: now, Body: []byte(body)}
		first := describeOutcome(decoders[stream].Decode(m))
		require.Equal(t, first, describeOutcome(decoders[stream].Decode(m)), body)
		return first
	})
}

// The names differ only far behind.
func TestLongNamesStayApart(t *testing.T) {
	t.Parallel()
	d := NewDecoder(mustParse(t, oneRule(`count: [{key: "page.{path}"}]`)).ForStream("ORDERS"), testLimits(10))
	long := strings.Repeat("ä", 400)
	hits, rejects, _ := d.Decode(Message{Subject: "orders.eu.created", Stored: now, Body: []byte(`[{"path":"` + long + `1"},{"path":"` + long + `2"}]`)})
	if len(hits) != 2 || len(rejects) != 0 || string(hits[0].Counter) == string(hits[1].Counter) {
		t.Fatalf("hits %+v, rejects %+v", hits, rejects)
	}
	for i, h := range hits {
		want := hit.Shorten(fmt.Appendf(nil, "page.%s%d", long, i+1))
		if string(h.Counter) != string(want) || hit.CheckName(h.Counter) != nil {
			t.Errorf("got %q, want %q", h.Counter, want)
		}
	}
}

// More subjects are decoded than are remembered. The first recur in between, and new ones are remembered at
// the end.
func TestMemoryOfSubjectsIsBounded(t *testing.T) {
	t.Parallel()
	d := NewDecoder(mustParse(t, "- {stream: ORDERS, subject: orders.*.created.>, count: [{key: \"a.{subject.1}.{subject.2}.{subject}\"}]}").ForStream("ORDERS"), testLimits(10))
	const most = 64
	d.matcher.limit = most
	for i := range most + most*missesPerReset + 10 {
		for _, n := range []int{i, i % 3} {
			subject := fmt.Sprintf("orders.%d.created.x.y", n)
			want := fmt.Sprintf("a.%d.x.y.%s=1", n, subject)
			got := describeOutcome(d.Decode(Message{Subject: subject, Stored: now, Body: []byte("{}")}))
			require.Equal(t, want, got)
		}
		if len(d.matcher.subjects) > most {
			t.Fatalf("%d subjects are remembered", len(d.matcher.subjects))
		}
	}
	if last := fmt.Sprintf("orders.%d.created.x.y", most+most*missesPerReset+5); d.matcher.subjects[last] == nil {
		t.Errorf("%s is not remembered", last)
	}
}

func TestFiltersOverlapInWhatBothMatch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		filters := make([]filter, 2)
		for i := range filters {
			text := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "*"}), 1, 3).Draw(t, "tokens"), ".")
			if rapid.Bool().Draw(t, "rest") {
				text += ".>"
			}
			var err error
			filters[i], err = parseFilter(text)
			require.NoError(t, err)
		}
		subjects := false
		forEach("ab", ".", 5, func(s string) {
			subjects = subjects || filters[0].matches(splitSubject(nil, s)) && filters[1].matches(splitSubject(nil, s))
		})
		require.Equal(t, subjects, filters[0].overlaps(filters[1]), "%v %v", filters[0].text, filters[1].text)
	})
}

// forEach calls f with all texts of 1 to most letters with something between them.
func forEach(letters, between string, most int, f func(string)) {
	var grow func(text string, n int)
	grow = func(text string, n int) {
		for _, letter := range letters {
			next := text + string(letter)
			f(next)
			if n > 1 {
				grow(next+between, n-1)
			}
		}
	}
	grow("", most)
}

// A meter by the subject of CloudEvents keeps customers apart. Rules that were stored when {subject} was
// still accepted there keep its meaning, so that a replay counts as before.
func TestTheSubjectOfACloudEventIsNotTheMessages(t *testing.T) {
	t.Parallel()
	const rule = "- {stream: S, subject: calls.*, format: cloudevents, count: [{key: \"%s\"}]}"
	decode := func(set *Set) string {
		hits, rejects, _ := NewDecoder(set.ForStream("S"), testLimits(10)).Decode(Message{Subject: "calls.eu", Stored: now,
			Body: []byte(`{"specversion":"1.0","type":"t","source":"/","id":"1","subject":"customer-17"}`)})
		require.Empty(t, rejects)
		require.Len(t, hits, 1)
		return string(hits[0].Counter)
	}
	require.Equal(t, "customer-17 of calls.eu", decode(mustParse(t, fmt.Sprintf(rule, "{^.subject} of {@subject}"))))
	_, err := Parse(fmt.Appendf(nil, rule, "{subject}"))
	require.ErrorContains(t, err, "write ^.subject for the event's, @subject for the message's")
	stored, err := ParseStored(fmt.Appendf(nil, rule, "{subject}"))
	require.NoError(t, err)
	require.Equal(t, "calls.eu", decode(stored))
}
