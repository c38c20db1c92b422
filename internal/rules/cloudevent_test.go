package rules

import (
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
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
	binary := headers{"ce-specversion": "1.0", "ce-type": "order.paid", "ce-source": "/shop", "ce-id": "1"}
	with := func(more ...string) headers {
		h := maps.Clone(binary)
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = more[i+1]
		}
		return h
	}
	for _, test := range []struct {
		name    string
		headers headers
		body    string
		want    string
	}{
		{"structured", headers{"Content-Type": "application/cloudevents+json; charset=UTF-8"}, `{` + eventHead + `,"data":{"country":"de"}}`, "order.paid=1 order.paid.de=1"},
		{"structured without headers", nil, `{` + eventHead + `}`, "order.paid=1"},
		{"over several lines", nil, "{\n" + eventHead + "\n}", "order.paid=1"},
		{"batch", headers{"content-type": "application/cloudevents-batch+json"}, `[{` + eventHead + `},{` + eventHead + `}]`, "order.paid=1 order.paid=1"},
		{"batch of nothing", headers{"content-type": "application/cloudevents-batch+json"}, `[]`, ""},
		{"batch without headers", nil, `[{` + eventHead + `}]`, "order.paid=1"},
		{"binary", with("ce-datacontenttype", "application/json"), `{"country":"de"}`, "order.paid=1 order.paid.de=1"},
		{"binary without a content type", binary, `{"country":"de"}`, "order.paid=1 order.paid.de=1"},
		{"binary, content type as in HTTP", with("Content-Type", "application/vnd.shop+json"), `{"country":"de"}`, "order.paid=1 order.paid.de=1"},
		{"binary with other data", with("Content-Type", "text/plain"), `{"country":"de"}`, "order.paid=1"},
		{"binary without data", binary, "", "order.paid=1"},
		{"binary with bad data", binary, "{", "bad_json/0:{"},
		{"binary, extension", with("ce-plan", "pro"), "", "order.paid=1 plan.pro=1"},
		{"binary, percent-encoded", with("ce-plan", "M%C3%BCller%20100%"), "", "order.paid=1 plan.Müller 100%=1"},
		{"binary, quoted", with("ce-specversion", `"1.0"`, "ce-type", `"order.paid"`, "ce-plan", `"M%C3%BCller \"\\x\""`), "", `order.paid=1 plan.Müller "\x"=1`},
		{"binary, not encoded at all", with("ce-plan", `Müller "x"`), "", `order.paid=1 plan.Müller "x"=1`},
		{"binary, a quote that is not closed", with("ce-plan", `"pro`), "{}", "bad_json/0:{}"},
		{"binary, more than the quoted text", with("ce-plan", `"pro" max"`), "{}", "bad_json/0:{}"},
		{"binary, no UTF-8", with("ce-plan", "%FF"), "{}", "bad_json/0:{}"},
		{"binary, no UTF-8, in an attribute that names nothing", with("ce-id", "%C0%A0"), "{}", "bad_json/0:{}"},
		{"binary, a quoted content type", with("ce-datacontenttype", `"application/json"`), `{"country":"de"}`, "order.paid=1 order.paid.de=1"},
		{"binary, a content type as in HTTP is not encoded", with("Content-Type", "application%2Fjson"), `{"country":"de"}`, "order.paid=1"},
		{"binary as in Kafka", headers{"ce_specversion": "1.0", "ce_type": "t", "ce_source": "/shop", "ce_id": "1", "ce_plan": "x"}, "", "t=1 plan.x=1"},
		{"binary as in Kafka, where nothing is encoded", headers{"ce_specversion": "1.0", "ce_type": "t", "ce_source": "/shop", "ce_id": "1", "ce_plan": `"%41"`}, "", `t=1 plan."%41"=1`},
		{"binary as in HTTP", headers{"Ce-Specversion": "1.0", "Ce-Type": "t", "Ce-Source": "/shop", "Ce-Id": "1", "Ce-Plan": "x"}, "", "t=1 plan.x=1"},
		{"binary with a time", with("ce-time", "2025-11-20T23:59:58Z"), "", "order.paid=1@2000"},
		{"binary with a bad time", with("ce-time", "noon"), "{}", "bad_time/0:{}"},
		{"binary without an id", headers{"ce-specversion": "1.0", "ce-type": "t", "ce-source": "/shop"}, "x", "bad_json/0:x"},
		{"time", nil, `{` + eventHead + `,"time":"2025-11-20T23:59:59Z"}`, "order.paid=1@1000"},
		{"time null", nil, `{` + eventHead + `,"time":null}`, "order.paid=1"},
		{"bad time", nil, `{` + eventHead + `,"time":"noon"}`, `bad_time/0:{` + eventHead + `,"time":"noon"}`},
		{"an integer as an attribute", nil, `{` + eventHead + `,"plan":5}`, "order.paid=1 plan.5=1"},
		{"base64", nil, `{` + eventHead + `,"data_base64":"eyJjb3VudHJ5IjoiZGUifQ=="}`, "order.paid=1 order.paid.de=1"},
		{"base64 of something else", nil, `{` + eventHead + `,"datacontenttype":"image/png","data_base64":"eyJjb3VudHJ5IjoiZGUifQ=="}`, "order.paid=1"},
		{"bad base64", nil, `{` + eventHead + `,"data_base64":"!"}`, `bad_json/0:{` + eventHead + `,"data_base64":"!"}`},
		{"base64 of no JSON", nil, `{` + eventHead + `,"data_base64":"eA=="}`, `bad_json/0:{` + eventHead + `,"data_base64":"eA=="}`},
		{"data twice", nil, `{` + eventHead + `,"data":{"country":"de"},"data_base64":"e30="}`, `bad_json/0:{` + eventHead + `,"data":{"country":"de"},"data_base64":"e30="}`},
		{"data of another type", nil, `{` + eventHead + `,"datacontenttype":"text/xml","data":{"country":"de"}}`, "order.paid=1"},
		{"no source", nil, `{"specversion":"1.0","type":"t","id":"1"}`, `bad_json/0:{"specversion":"1.0","type":"t","id":"1"}`},
		{"an id that is no text", nil, `{"specversion":"1.0","type":"t","source":"/","id":1}`, `bad_json/0:{"specversion":"1.0","type":"t","source":"/","id":1}`},
		{"empty type", nil, `{"specversion":"1.0","type":"","source":"/","id":"1"}`, `bad_json/0:{"specversion":"1.0","type":"","source":"/","id":"1"}`},
		{"another version", nil, `{"specversion":"0.3","type":"t","source":"/","id":"1"}`, `bad_json/0:{"specversion":"0.3","type":"t","source":"/","id":"1"}`},
		{"no CloudEvent, says a header", headers{"Content-Type": "application/cloudevents+json"}, `{"key":"a"}`, `bad_json/0:{"key":"a"}`},
		{"hits", nil, `[{"key":"a"},{"key":"b","n":3}]`, "a=1 b=3"},
		{"a hit without a key", nil, `{"n":2}`, `bad_key/0:{"n":2}`},
		{"a hit beside an event", nil, `[{"key":"a"},{` + eventHead + `}]`, "a=1 order.paid=1"},
		{"a format that is not JSON", headers{"Content-Type": "application/cloudevents+avro"}, "\x02x", "bad_json/0:\x02x"},
		{"empty", nil, "", "bad_json/0:"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := NewDecoder(mustParse(t, shopRule).For("SHOP"), testLimits(10))
			m := Message{Subject: "shop.orders", Counter: "plain", Stored: now, Body: []byte(test.body)}
			if test.headers != nil {
				m.Header = test.headers.get
			}
			d.Decode(Message{Subject: "shop.orders", Stored: now, Body: []byte(`{` + eventHead + `,"plan":"old","data":{"country":"old"}}`)})
			if got := outcome(d.Decode(m)); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestWithoutARuleOnlyCloudEventsAreRefused(t *testing.T) {
	t.Parallel()
	event := `{` + eventHead + `}`
	for _, test := range []struct {
		name    string
		headers headers
		body    string
		want    string
	}{
		{"a hit", nil, `{"key":"a","n":2}`, "a=2"},
		{"no body", nil, "", "plain=1"},
		{"hits and an event", nil, `[{"key":"a"},` + event + `,{"n":0}]`, "a=1 no_rule/1:" + event + ` bad_count/2:{"n":0}`},
		{"not all of an event", nil, `{"specversion":"1.0","type":"t","source":"/"}`, "plain=1"},
		{"no JSON", nil, `{"specversion":`, `bad_json/0:{"specversion":`},
		{"structured", headers{"Content-Type": "application/cloudevents+json"}, `{"key":"a"}`, `no_rule/0:{"key":"a"}`},
		{"batch", headers{"content-type": "Application/CloudEvents-Batch+JSON"}, `[` + event + `,{}]`, `no_rule/0:` + event + ` no_rule/1:{}`},
		{"binary", headers{"ce-specversion": "1.0"}, `[1,2]`, `no_rule/0:[1,2]`},
		{"binary as in Kafka", headers{"ce_specversion": "1.0"}, ``, `no_rule/0:`},
		{"binary as in HTTP", headers{"Ce-Specversion": "1.0"}, ``, `no_rule/0:`},
		{"other headers", headers{"Content-Type": "application/json", "Nats-Msg-Id": "1"}, `{"key":"a"}`, "a=1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, rules := range []*Rules{mustParse(t, shopRule).For("OTHER"), mustParse(t, shopRule).For("SHOP")} {
				m := Message{Subject: "other", Counter: "plain", Stored: now, Body: []byte(test.body)}
				if test.headers != nil {
					m.Header = test.headers.get
				}
				if got := outcome(NewDecoder(rules, testLimits(10)).Decode(m)); got != test.want {
					t.Errorf("%d rules: got  %s\nwant %s", rules.Len(), got, test.want)
				}
			}
		})
	}
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
	if mode := CloudEvent(request.Get("Content-Type"), request.Get); mode != Binary {
		t.Fatalf("mode %d", mode)
	}
	values, refused := BinaryHeaders(request)
	message := headers(values)
	if refused != nil || len(message) != 6 || strings.Contains(strings.Join(slicesOf(message.get("Authorization"), 1), ""), "secret") {
		t.Fatalf("headers %v", message)
	}
	d := NewDecoder(mustParse(t, shopRule).For("SHOP"), testLimits(10))
	got := outcome(d.Decode(Message{Subject: "shop.x", Header: message.get, Stored: now, Body: []byte(`{"country":"fr"}`)}))
	if want := "order.paid=1 order.paid.fr=1 plan.pro max=1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
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
