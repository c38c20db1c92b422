package rules

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"

	"tallyroll/internal/hit"
)

// cloudEvent reads CloudEvents into a tree. Its methods append what values point to, apart from the message,
// to texts.
type cloudEvent struct {
	event       *tree
	required    [len(required)]*node
	time        *node
	contentType *node
	base64      *node
	data        *node // nil if no rule looks into it
	attributes  []attribute
}

// required are the mandatory attributes of a CloudEvent.
var required = [...]string{"specversion", "type", "source", "id"}

const specVersion = "1.0"

func newCloudEvent(event *tree) *cloudEvent {
	c := &cloudEvent{event: event}
	for i, name := range required {
		c.required[i] = event.add([]string{name})
	}
	c.time = event.add([]string{"time"})
	c.contentType = event.add([]string{"datacontenttype"})
	c.base64 = event.add([]string{"data_base64"})
	return c
}

// finish is called when the tree has all paths.
func (c *cloudEvent) finish() {
	for _, n := range c.event.root.children {
		switch {
		case n.name == "data":
			c.data = n
		case n.slot >= 0 && n != c.base64:
			c.attributes = append(c.attributes, newAttribute(n))
		}
	}
}

// finishJSON refuses a JSON object that is no CloudEvent, and reads data_base64.
func (c *cloudEvent) finishJSON(texts []byte) ([]byte, *hit.Refusal) {
	texts, json, refusal := c.checkJSON(texts)
	encoded := c.base64.value()
	switch {
	case refusal != nil || !json || encoded.isMissing():
		return texts, refusal
	case c.data.isFound():
		return texts, newCloudEventRefusal("has both data and data_base64")
	case encoded.kind != kindText && encoded.kind != kindEscaped:
		return texts, newCloudEventRefusal("data_base64 is " + encoded.String() + ": must be text")
	}
	start := len(texts)
	texts, ok := encoded.appendTo(texts)
	end := len(texts)
	texts, err := base64.StdEncoding.AppendDecode(texts, texts[start:])
	if !ok || err != nil {
		return texts, newCloudEventRefusal("data_base64 is " + encoded.String() + ", which is not base64")
	}
	return texts, c.readData(texts[end:])
}

// readBinary reads an event whose attributes are headers, and whose data is the body.
func (c *cloudEvent) readBinary(
	texts []byte, names style, header func(name string) string, body []byte,
) ([]byte, *hit.Refusal) {
	texts, refusal := c.readHeaders(texts, names, header)
	if refusal != nil {
		return texts, refusal
	}
	texts, json, refusal := c.checkJSON(texts)
	if refusal != nil || !json || hit.Blank(body) {
		return texts, refusal
	}
	return texts, c.readData(hit.TrimMark(body))
}

// readHeaders reads attributes. datacontenttype may also be the message's Content-Type, as in HTTP.
func (c *cloudEvent) readHeaders(
	texts []byte, names style, header func(name string) string,
) ([]byte, *hit.Refusal) {
	c.event.root.clearValues()
	for _, a := range c.attributes {
		name, start := a.names[names], len(texts)
		if text := header(name); text != "" {
			var err error
			texts, err = names.appendValue(texts, text)
			if err != nil {
				return texts, newHeaderRefusal(name, text, err)
			}
		} else if a.node == c.contentType {
			texts = append(texts, readContentType(header)...)
		}
		if len(texts) > start {
			a.node.setValue(value{kindPlain, texts[start:len(texts):len(texts)]})
		}
	}
	return texts, nil
}

// checkJSON refuses an event that is no CloudEvent. json means that a rule looks into its data, and that it
// is JSON, which is the default. Data of other types has no values.
func (c *cloudEvent) checkJSON(texts []byte) (out []byte, json bool, refusal *hit.Refusal) {
	refusal = c.check("")
	if refusal != nil || c.data == nil {
		return texts, false, refusal
	}
	v := c.contentType.value()
	if v.isMissing() {
		return texts, true, nil
	}
	start := len(texts)
	texts, ok := v.appendTo(texts)
	if ok && isJSON(string(texts[start:])) {
		return texts, true, nil
	}
	c.data.clearValues()
	return texts, false, nil
}

// check refuses an event without the required attributes. prefix is put before their names.
func (c *cloudEvent) check(prefix string) *hit.Refusal {
	for i, n := range c.required {
		v := n.value()
		if v.isMissing() || !v.isText() {
			return newCloudEventRefusal(prefix + required[i] + " is " + v.String() + ": must be text")
		}
	}
	if version := c.required[0].value(); string(version.text) != specVersion {
		return newCloudEventRefusal(prefix + "specversion is " + version.String() + ": must be " + specVersion)
	}
	return nil
}

func isJSON(contentType string) bool {
	kind := mediaType(contentType)
	return kind == "application/json" || kind == "text/json" || strings.HasSuffix(kind, "+json")
}

// readData reads an event's data, which must be JSON.
func (c *cloudEvent) readData(json []byte) *hit.Refusal {
	err := c.data.readAll(json)
	if err != nil {
		return newCloudEventRefusal("its data should be JSON: " + err.Error())
	}
	return nil
}

// detector finds the CloudEvents among objects that nothing announces as such.
type detector struct{ *tree }

func newDetector() detector {
	t := newTree()
	for _, name := range required {
		t.add([]string{name})
	}
	t.finish()
	return detector{t}
}

// mayBeEvent reports, without parsing the JSON, whether it may be an event. False is certain.
func mayBeEvent(json []byte) bool { return bytes.Contains(json, []byte(required[0])) }

// isEvent reports whether an object has a specversion, or is not JSON.
func (d detector) isEvent(object []byte) bool {
	return mayBeEvent(object) && (d.root.readAll(object) != nil || d.values[0].kind != kindAbsent)
}

var noRule = &hit.Refusal{Reason: hit.NoRule, Detail: "a CloudEvent, and no rule of its stream matches its " +
	"subject: add one with format cloudevents to INGEST_RULES"}

// refuse refuses an object with all required attributes. Of text that is not JSON, hit.Decoder has the better
// detail.
func (d detector) refuse(object []byte) *hit.Refusal {
	absent := func(v value) bool { return v.kind == kindAbsent }
	if !mayBeEvent(object) || d.root.readAll(object) != nil || slices.ContainsFunc(d.values, absent) {
		return nil
	}
	return noRule
}

// Checker checks CloudEvents before they are published, as a Decoder does later. It does not read the data.
// It reuses its memory, so only one goroutine may use it.
type Checker struct{ cloud *cloudEvent }

// Identity identifies a DetectMode.
type Identity struct{ Source, ID string }

func NewChecker() *Checker {
	c := newCloudEvent(newTree())
	c.event.finish()
	c.finish()
	return &Checker{c}
}

// JSON checks an event in structured mode, or one of a batch.
func (c *Checker) JSON(event []byte) (Identity, *hit.Refusal) {
	if len(event) == 0 || event[0] != '{' {
		return Identity{}, newCloudEventRefusal("not a JSON object")
	}
	err := c.cloud.event.root.readAll(event)
	if err != nil {
		return Identity{}, newCloudEventRefusal("not a JSON object: " + err.Error())
	}
	return c.check("")
}

// Header checks an event in binary mode with headers as BinaryHeaders returns them.
func (c *Checker) Header(header map[string]string) (Identity, *hit.Refusal) {
	_, refusal := c.cloud.readHeaders(nil, hyphen, func(name string) string { return header[name] })
	if refusal != nil {
		return Identity{}, refusal
	}
	return c.check("ce-")
}

// check checks the event that was read. prefix is put before the names of attributes.
func (c *Checker) check(prefix string) (Identity, *hit.Refusal) {
	var missing []string
	for i, n := range c.cloud.required {
		if n.value().isMissing() {
			missing = append(missing, prefix+required[i])
		}
	}
	if len(missing) > 0 {
		return Identity{}, newCloudEventRefusal(strings.Join(missing, ", ") + chooseVerb(len(missing)) + " missing")
	}
	refusal := c.cloud.check(prefix)
	if refusal != nil {
		return Identity{}, refusal
	}
	at := c.cloud.time.value()
	if !at.isMissing() {
		text, _ := at.appendTo(nil)
		when, err := hit.ParseTime(string(text))
		if err == nil {
			err = hit.CheckTime(when)
		}
		if err != nil || !at.isText() {
			return Identity{}, newCloudEventRefusal(prefix + "time is " + at.String() + ": must be an RFC 3339 string")
		}
	}
	var texts [len(required)]string
	for i, n := range c.cloud.required {
		text, ok := n.value().appendTo(nil)
		if !ok {
			return Identity{}, newCloudEventRefusal(prefix + required[i] + " has half of a surrogate pair")
		}
		texts[i] = string(text)
	}
	return Identity{Source: texts[2], ID: texts[3]}, nil
}

func chooseVerb(n int) string {
	if n == 1 {
		return " is"
	}
	return " are"
}
