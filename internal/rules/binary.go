package rules

import (
	"strconv"
	"strings"

	"tallyroll/internal/hit"
)

// style is how headers name an event's attributes. Headers of NATS are case-sensitive.
type style int

const (
	hyphen     style = iota // ce-type, as in the binding for NATS
	underscore              // ce_type, as in the binding for Kafka
	canonical               // Ce-Type, as Go's HTTP client writes it
	styles
)

// attribute is a value that a header has in binary mode.
type attribute struct {
	node  *node
	names [styles]string
}

func newAttribute(n *node) attribute {
	return attribute{n, [styles]string{"ce-" + n.name, "ce_" + n.name, "Ce-" + strings.ToUpper(n.name[:1]) + n.name[1:]}}
}

var specVersionNames = newAttribute(&node{name: required[0]}).names

// CloudEvent tells how a message or an HTTP request carries CloudEvents, from its content type and its headers.
// header returns the first value of a header, or "". A body without these marks can still be a CloudEvent.
func CloudEvent(contentType string, header func(name string) string) Mode {
	mode, _ := modeOf(contentType, header)
	return mode
}

func cloudEventMode(header func(name string) string) (Mode, style) {
	if header == nil {
		return NoCloudEvent, 0
	}
	return modeOf(contentTypeOf(header), header)
}

func contentTypeOf(header func(name string) string) string {
	contentType := header("Content-Type")
	if contentType == "" {
		contentType = header("content-type")
	}
	return contentType
}

func modeOf(contentType string, header func(name string) string) (Mode, style) {
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

// BinaryHeaders returns the headers of a NATS message for the headers of an HTTP request that carries a CloudEvent in
// binary mode. The request's body is the message's.
func BinaryHeaders(request map[string][]string) map[string]string {
	out := make(map[string]string)
	for name, values := range request {
		low := strings.ToLower(name)
		switch {
		case len(values) == 0:
		case strings.HasPrefix(low, "ce-"):
			out[low] = values[0]
		case low == "content-type":
			out["ce-datacontenttype"] = values[0]
		}
	}
	return out
}

// EventHeader reports whether a header of a NATS message can be a part of a CloudEvent, or tell how the message carries one.
func EventHeader(name string) bool {
	const prefix = "ce-" // or ce_
	return strings.EqualFold(name, "Content-Type") ||
		len(name) > len(prefix) && strings.EqualFold(name[:2], prefix[:2]) && (name[2] == '-' || name[2] == '_')
}

// readBinary reads an event whose attributes are headers.
func (d *Decoder) readBinary(names style) *hit.Refusal {
	p := d.matched.plan
	header := d.message.Header
	p.event.root.forget()
	for _, a := range p.cloud.attributes {
		text := header(a.names[names])
		if text == "" && a.node == p.cloud.contentType {
			text = contentTypeOf(header)
		}
		if text != "" {
			start := len(d.texts)
			d.texts = appendDecoded(d.texts, text)
			p.event.values[a.node.slot] = value{isPlain, d.texts[start:len(d.texts):len(d.texts)]}
		}
	}
	refused := d.checkCloudEvent()
	if refused != nil || p.cloud.data == nil || !d.hasJSON() || hit.Blank(d.message.Body) {
		return refused
	}
	return d.readData(d.message.Body)
}

// appendDecoded appends a header's value, in which some characters may be percent-encoded.
func appendDecoded(b []byte, text string) []byte {
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			c, err := strconv.ParseUint(text[i+1:i+3], 16, 8)
			if err == nil {
				b = append(b, byte(c))
				i += 2
				continue
			}
		}
		b = append(b, text[i])
	}
	return b
}
