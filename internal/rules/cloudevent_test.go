package rules

import (
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/hit"
	"tallyroll/tests/cases"
)

const shopRule = `- stream: SHOP
  subject: shop.>
  format: cloudevents
  count:
    - key: "{type}"
    - key: "{type}.{data.country}"
      optional: true
    - key: "plan.{plan}"
      optional: true
`

const eventHead = `"specversion":"1.0","type":"order.paid","source":"/shop","id":"1"`

func TestCloudEventsAreReadInAllModes(t *testing.T) {
	t.Parallel()
	cases.Check(t, "cloudevents", func(t *testing.T, section, body string) string {
		d := NewDecoder(mustParse(t, shopRule).ForStream("SHOP"), testLimits(10))
		d.Decode(Message{Subject: "shop.orders", Stored: now, Body: []byte(`{` + eventHead + `,"plan":"old","data":{"country":"old"}}`)})
		return explain(t, d, eventMessage("shop.orders", section, body))
	})
}

// eventMessage returns a message with the headers in a section's title.
func eventMessage(subject, section, body string) Message {
	m := Message{Subject: subject, Counter: "plain", Stored: now, Body: []byte(strings.ReplaceAll(body, "HEAD", eventHead))}
	if section == "no headers" {
		return m
	}
	h := headers{}
	for _, field := range strings.Split(section, " | ") {
		if field == "binary" {
			h = headers{"ce-specversion": "1.0", "ce-type": "order.paid", "ce-source": "/shop", "ce-id": "1"}
			continue
		}
		name, value, _ := strings.Cut(field, ": ")
		h[name] = value
	}
	m.Header = h.get
	return m
}

func TestWithoutARuleOnlyCloudEventsAreRefused(t *testing.T) {
	t.Parallel()
	cases.Check(t, "norule", func(t *testing.T, section, body string) string {
		m := eventMessage("other", section, body)
		first := explain(t, NewDecoder(mustParse(t, shopRule).ForStream("OTHER"), testLimits(10)), m)
		require.Equal(t, first, explain(t, NewDecoder(mustParse(t, shopRule).ForStream("SHOP"), testLimits(10)), m), "the stream has a rule for other subjects")
		return first
	})
}

func TestHeadersOfARequestBecomeThoseOfAMessage(t *testing.T) {
	t.Parallel()
	request := http.Header{
		"Ce-Specversion": {"1.0"}, "Ce-Type": {"order.paid"}, "Ce-Source": {"/shop"}, "Ce-Id": {"1"}, "Ce-Plan": {"pro%20max"},
		"Content-Type": {"application/json"}, "Authorization": {"Bearer secret"},
	}
	require.EqualValues(t, Binary, DetectMode(request.Get("Content-Type"), request.Get))
	values, refused := BinaryHeaders(request)
	message := headers(values)
	if refused != nil || len(message) != 6 || message.get("Authorization") != "" {
		t.Fatalf("headers %v", message)
	}
	d := NewDecoder(mustParse(t, shopRule).ForStream("SHOP"), testLimits(10))
	got := describeOutcome(d.Decode(Message{Subject: "shop.x", Header: message.get, Stored: now, Body: []byte(`{"country":"fr"}`)}))
	require.Equal(t, got, "order.paid=1 order.paid.fr=1 plan.pro max=1")
}

// Values of headers are decoded as the bindings specify. For the standards that they refer to, Go's standard
// library is the reference: mime for quoted strings, and net/url for percent-encoding.
func TestHeaderValuesAreDecodedAsTheBindingsSay(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Euro%20%E2%82%AC%20%F0%9F%98%80": "Euro € 😀", "%e2%82%ac": "€", "%41": "A", "%2541": "%41", `"%2541"`: "%41", "100%": "100%", "%4": "%4", "%zz%41": "%zzA",
		`"a b"`: "a b", `""`: "", `"\"\\"`: `"\`, `"\%41"`: "A", `a"b"`: `a"b"`, `a\b`: `a\b`, "": "",
	} {
		got, err := hyphen.appendValue([]byte("x"), text)
		require.NoError(t, err, text)
		require.Equal(t, "x"+want, string(got), text)
	}
	for _, text := range []string{"%C0%A0", "%FF", "\xff", "%ED%A0%80", `"`, `"a`, `"a\"`, `"a"b`, `"a"b"`, `"a" `} {
		if got, err := hyphen.appendValue(nil, text); err == nil || len(got) > 0 {
			t.Errorf("%q is decoded as %q", text, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.String().Draw(t, "value")
		encoded := encodeValue([]byte(value))
		decoded, err := hyphen.appendValue(nil, encoded)
		if err != nil || string(decoded) != value || strings.ContainsFunc(encoded, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }) {
			t.Fatalf("%q is encoded as %q, and that is %q (%v)", value, encoded, decoded, err)
		}
		text := strings.Join(rapid.SliceOf(rapid.SampledFrom([]string{"a", `"`, `\"`, `\\`, "%", "41", "%41", "%C3", "%A4", "%22", "ä", "\xc3"})).Draw(t, "text"), "")
		want, valid := text, true
		if strings.HasPrefix(text, `"`) {
			_, params, err := mime.ParseMediaType("x/y; v=" + text)
			want, valid = params["v"], err == nil
		}
		want, err = url.PathUnescape(want)
		if err != nil {
			return // the bindings do not specify that
		}
		valid = valid && utf8.ValidString(want)
		got, err := hyphen.appendValue(nil, text)
		if (err == nil) != valid || valid && string(got) != want {
			t.Fatalf("%q is %q (%v); want %q (%t)", text, got, err, want, valid)
		}
	})
}

// JSON that a Checker accepts, a Decoder accepts as a DetectMode with a time, alone and in a batch. What the
// Checker refuses, the Decoder refuses, too, except times that are not RFC 3339.
func FuzzChecker(f *testing.F) {
	const good = `{"specversion":"1.0","type":"a","source":"b","id":"c","time":"2026-11-21T10:00:00Z","data":{}}`
	for _, event := range []string{
		good, strings.Replace(good, "1.0", "0.3", 1), strings.Replace(good, `"a"`, "null", 1), strings.Replace(good, `"b"`, `""`, 1), strings.Replace(good, `"c"`, `"\ud800"`, 1),
		strings.Replace(good, "2026", "0000", 1), strings.Replace(good, `"2026-11-21T10:00:00Z"`, "5", 1), strings.Replace(good, "specversion", `spec\u0076ersion`, 1), "{}", "", "[]", good + good,
	} {
		f.Add(event)
	}
	set, err := Parse([]byte("- {stream: S, subject: e, format: cloudevents, count: [{key: counter}]}"))
	require.NoError(f, err)
	structured := nats.Header{"Content-Type": {"application/cloudevents+json"}}.Get // as collect publishes them
	f.Fuzz(func(t *testing.T, event string) {
		event = strings.Trim(event, " \t\r\n")
		identity, refused := NewChecker().JSON([]byte(event))
		d := NewDecoder(set.ForStream("S"), hit.Limits{MaxHits: 10, MaxAhead: time.Second, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" }})
		stored := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMilli()
		for _, body := range []string{event, "[" + event + "]"} {
			hits, rejects, _ := d.Decode(Message{Subject: "e", Header: structured, Stored: stored, Body: []byte(body)})
			switch {
			case refused == nil && (len(hits) != 1 || len(rejects) > 0):
				t.Errorf("%q is accepted, and makes %d hits and %+v", body, len(hits), rejects)
			case refused == nil && (identity.Source == "" || identity.ID == ""):
				t.Errorf("%q is %+v", body, identity)
			case refused != nil && len(hits) == 1 && len(rejects) == 0 && !strings.HasPrefix(event, "[") &&
				!strings.Contains(refused.Detail, "time is") && !strings.Contains(refused.Detail, "surrogate") && hit.IsObject([]byte(event)):
				t.Errorf("%q is refused (%s), and counts", body, refused.Detail)
			}
		}
	})
}

func TestHeadersOfARequestAreCheckedAsADecoderReadsThem(t *testing.T) {
	t.Parallel()
	cases.Check(t, "headers", func(t *testing.T, _, given string) string {
		request := map[string][]string{
			"Ce-Specversion": {"1.0"}, "Ce-Type": {"a"}, "Ce-Source": {"/%C3%A4"}, "Ce-Id": {"1"}, "Content-Type": {"text/plain"}, "Accept": {"x"},
		}
		if name, value, found := strings.Cut(given, ":"); found {
			request[name] = []string{strings.TrimSpace(value)}
		}
		message, refused := BinaryHeaders(request)
		if refused == nil {
			var identity Identity
			if identity, refused = NewChecker().Header(message); refused == nil {
				return fmt.Sprintf("source %s, id %s", identity.Source, identity.ID)
			}
		}
		return refused.Detail
	})
}

func TestHeadersOfEventsAreDistinguished(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"ce-id": true, "Ce-Id": true, "ce_id": true, "Content-Type": true, "content-type": true,
		"ce-": false, "ce": false, "cex-id": false, nats.MsgIdHdr: false, "Nats-Expected-Stream": false, "Tallyroll-Subject": false, "": false,
	} {
		require.Equal(t, want, IsEventHeader(name), !want)
	}
}
