package rules

import (
	"mime"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

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
		d := NewDecoder(mustParse(t, shopRule).For("SHOP"), testLimits(10))
		d.Decode(Message{Subject: "shop.orders", Stored: now, Body: []byte(`{` + eventHead + `,"plan":"old","data":{"country":"old"}}`)})
		return explained(t, d, eventMessage("shop.orders", section, body))
	})
}

// eventMessage is a message whose headers a section of a file has.
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
		first := explained(t, NewDecoder(mustParse(t, shopRule).For("OTHER"), testLimits(10)), m)
		require.Equal(t, first, explained(t, NewDecoder(mustParse(t, shopRule).For("SHOP"), testLimits(10)), m), "the stream has a rule for other subjects")
		return first
	})
}

func TestHeadersOfARequestBecomeThoseOfAMessage(t *testing.T) {
	t.Parallel()
	request := http.Header{}
	request.Set("ce-specversion", "1.0")
	request.Set("ce-type", "order.paid")
	request.Set("ce-source", "/shop")
	request.Set("ce-id", "1")
	request.Set("ce-plan", "pro%20max")
	request.Set("Content-Type", "application/json")
	request.Set("Authorization", "Bearer secret")
	require.EqualValues(t, Binary, CloudEvent(request.Get("Content-Type"), request.Get))
	values, refused := BinaryHeaders(request)
	message := headers(values)
	if refused != nil || len(message) != 6 || strings.Contains(strings.Join(slicesOf(message.get("Authorization"), 1), ""), "secret") {
		t.Fatalf("headers %v", message)
	}
	d := NewDecoder(mustParse(t, shopRule).For("SHOP"), testLimits(10))
	got := outcome(d.Decode(Message{Subject: "shop.x", Header: message.get, Stored: now, Body: []byte(`{"country":"fr"}`)}))
	require.Equal(t, got, "order.paid=1 order.paid.fr=1 plan.pro max=1")
}

// What a header's value stands for, by the words of the bindings. Where these are those of other standards, Go's
// standard library judges: mime knows quoted strings, and net/url percent-encoding.
func TestHeaderValues(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Euro%20%E2%82%AC%20%F0%9F%98%80": "Euro € 😀", "%e2%82%ac": "€", "%41": "A", "%2541": "%41", `"%2541"`: "%41", "100%": "100%", "%4": "%4", "%zz%41": "%zzA",
		`"a b"`: "a b", `""`: "", `"\"\\"`: `"\`, `"\%41"`: "A", `a"b"`: `a"b"`, `a\b`: `a\b`, "": "",
	} {
		got, err := hyphen.appendValue([]byte("x"), text)
		if err != nil || string(got) != "x"+want {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"%C0%A0", "%FF", "\xff", "%ED%A0%80", `"`, `"a`, `"a\"`, `"a"b`, `"a"b"`, `"a" `} {
		if got, err := hyphen.appendValue(nil, text); err == nil || len(got) > 0 {
			t.Errorf("%q is taken for %q", text, got)
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
		want, fine := text, true
		if strings.HasPrefix(text, `"`) {
			_, params, err := mime.ParseMediaType("x/y; v=" + text)
			want, fine = params["v"], err == nil
		}
		want, err = url.PathUnescape(want)
		if err != nil {
			return // the bindings say nothing of that
		}
		fine = fine && utf8.ValidString(want)
		got, err := hyphen.appendValue(nil, text)
		if (err == nil) != fine || fine && string(got) != want {
			t.Fatalf("%q is %q (%v); want %q (%t)", text, got, err, want, fine)
		}
	})
}
