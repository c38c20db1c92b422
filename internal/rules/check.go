package rules

import (
	"strings"

	"tallyroll/internal/hit"
)

// Checker checks CloudEvents before they are published, as a Decoder does later. It does not read the data.
// It reuses its memory, so only one goroutine may use it.
type Checker struct {
	event *tree
	cloud *cloudEvent
}

// Identity identifies a DetectMode.
type Identity struct{ Source, ID string }

func NewChecker() *Checker {
	event := newTree()
	c := newCloudEvent(event)
	event.finish()
	c.finish(event)
	return &Checker{event: event, cloud: c}
}

// JSON checks an event in structured mode, or one of a batch.
func (c *Checker) JSON(event []byte) (Identity, *hit.Refusal) {
	if len(event) == 0 || event[0] != '{' {
		return Identity{}, newCloudEventRefusal("not a JSON object")
	}
	err := c.event.root.readAll(event)
	if err != nil {
		return Identity{}, newCloudEventRefusal("not a JSON object: " + err.Error())
	}
	return c.check("")
}

// Header checks an event in binary mode with headers as BinaryHeaders returns them.
func (c *Checker) Header(header map[string]string) (Identity, *hit.Refusal) {
	c.event.root.clearValues()
	for _, a := range c.cloud.attributes {
		name := a.names[hyphen]
		text, err := hyphen.appendValue(nil, header[name])
		if err != nil {
			return Identity{}, newHeaderRefusal(name, header[name], err)
		}
		if len(text) > 0 {
			c.event.values[a.node.slot] = value{kindPlain, text}
		}
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
