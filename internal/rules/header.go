package rules

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"tallyroll/internal/hit"
)

// Mode is how a message carries CloudEvents.
type Mode int

const (
	NoCloudEvent Mode = iota
	Structured        // the body is one event as JSON
	Batch             // the body is a JSON array of events
	Binary            // the headers are the event's attributes, and the body is its data
)

// style is how headers name an event's attributes. Headers of NATS are case-sensitive.
type style int

const (
	hyphen     style = iota // ce-type, as in the binding for NATS
	underscore              // ce_type, as in the binding for Kafka
	canonical               // Ce-Type, as Go's HTTP client writes it
	styles
)

// attribute is a value that binary mode carries in a header.
type attribute struct {
	node  *node
	names [styles]string
}

func newAttribute(n *node) attribute {
	upper := strings.ToUpper(n.name[:1]) + n.name[1:]
	return attribute{n, [styles]string{"ce-" + n.name, "ce_" + n.name, "Ce-" + upper}}
}

var specVersionNames = newAttribute(&node{name: required[0]}).names

// DetectMode returns how the headers of a message or an HTTP request announce CloudEvents. header returns the
// first value of a header, or "". With NoCloudEvent, the body can still be a DetectMode.
func DetectMode(contentType string, header func(name string) string) Mode {
	mode, _ := detectModeAndStyle(contentType, header)
	return mode
}

func detectMessageMode(header func(name string) string) (Mode, style) {
	if header == nil {
		return NoCloudEvent, 0
	}
	return detectModeAndStyle(readContentType(header), header)
}

func readContentType(header func(name string) string) string {
	contentType := header("Content-Type")
	if contentType == "" {
		contentType = header("content-type")
	}
	return contentType
}

func detectModeAndStyle(contentType string, header func(name string) string) (Mode, style) {
	const family = "application/cloudevents"
	if len(contentType) >= len(family) && strings.EqualFold(contentType[:len(family)], family) {
		if strings.HasPrefix(mediaType(contentType), family+"-batch") {
			return Batch, 0
		}
		return Structured, 0
	}
	for s, name := range specVersionNames {
		if header(name) != "" {
			return Binary, style(s)
		}
	}
	return NoCloudEvent, 0
}

func mediaType(contentType string) string {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

// BinaryHeaders converts the headers of an HTTP request with a DetectMode in binary mode to a NATS message's.
// It encodes values as in the bindings, so the same event always has the same headers.
func BinaryHeaders(request map[string][]string) (map[string]string, *hit.Refusal) {
	out := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(request)) {
		lower, values := strings.ToLower(name), request[name]
		switch {
		case len(values) == 0:
		case strings.HasPrefix(lower, "ce-"):
			value, err := hyphen.appendValue(nil, values[0])
			if err != nil {
				return nil, newHeaderRefusal(lower, values[0], err)
			}
			out[lower] = encodeValue(value)
		case lower == "content-type": // HTTP does not percent-encode it
			out["ce-datacontenttype"] = encodeValue([]byte(values[0]))
		}
	}
	return out, nil
}

// IsEventHeader reports whether a NATS header can be part of a DetectMode, or announce one.
func IsEventHeader(name string) bool {
	const prefix = "ce-" // or ce_
	return strings.EqualFold(name, "Content-Type") ||
		len(name) > len(prefix) && strings.EqualFold(name[:2], prefix[:2]) && (name[2] == '-' || name[2] == '_')
}

func newCloudEventRefusal(detail string) *hit.Refusal {
	return &hit.Refusal{Reason: hit.BadJSON, Detail: "not a CloudEvent: " + detail}
}

func newHeaderRefusal(name, text string, err error) *hit.Refusal {
	return newCloudEventRefusal(name + " is " + value{kindPlain, []byte(text)}.String() + ": " + err.Error())
}

var (
	errOpenQuote  = errors.New("begins with a quote: must end with one, too, and have \\ before those in between")
	errHeaderUTF8 = errors.New("must be valid UTF-8, as it is or percent-encoded")
)

// appendValue decodes the value of an attribute from its header. The bindings for HTTP (1.0.2) and NATS
// (1.0.3) agree: double quotes are removed (RFC 9110, 5.6.4), then one round of percent-encoding is undone,
// and what is no UTF-8 then is refused. They do not specify a % without two digits; it stands for itself,
// because senders that do not encode exist. The binding for Kafka does not encode values.
func (s style) appendValue(b []byte, text string) ([]byte, error) {
	start, quoted := len(b), false
	if s != underscore && text != "" && text[0] == '"' {
		if len(text) < 2 || text[len(text)-1] != '"' {
			return b, errOpenQuote
		}
		text, quoted = text[1:len(text)-1], true
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		if quoted && c == '"' {
			return b[:start], errOpenQuote
		}
		if quoted && c == '\\' {
			i++
			if i == len(text) { // it belongs to the last quote
				return b[:start], errOpenQuote
			}
			c = text[i]
		}
		b = append(b, c)
	}
	if s != underscore {
		b = b[:start+decodePercent(b[start:])]
	}
	if !utf8.Valid(b[start:]) {
		return b[:start], errHeaderUTF8
	}
	return b, nil
}

// decodePercent decodes percent-encoding in place and returns the remaining length.
func decodePercent(text []byte) int {
	n := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '%' && i+2 < len(text) {
			if _, err := hex.Decode(text[n:n+1], text[i+1:i+3]); err == nil {
				n, i = n+1, i+2
				continue
			}
		}
		text[n] = c
		n++
	}
	return n
}

func encodeValue(value []byte) string {
	var out strings.Builder
	for _, c := range value {
		if c > ' ' && c < 0x7f && c != '"' && c != '%' {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}
