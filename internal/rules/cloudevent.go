package rules

import (
	"bytes"
	"encoding/base64"
	"strings"

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

// required are the mandatory attributes of a DetectMode.
var required = [...]string{"specversion", "type", "source", "id"}

const specVersion = "1.0"

const noRuleDetail = "a CloudEvent, and no rule of its stream matches its subject: add one with format cloudevents to INGEST_RULES"

type cloudEvent struct {
	required    [len(required)]*node
	time        *node
	contentType *node
	base64      *node
	data        *node // nil if no rule looks into it
	attributes  []attribute
}

func newCloudEvent(event *tree) *cloudEvent {
	c := new(cloudEvent)
	for i, name := range required {
		c.required[i] = event.add([]string{name})
	}
	c.time = event.add([]string{"time"})
	c.contentType = event.add([]string{"datacontenttype"})
	c.base64 = event.add([]string{"data_base64"})
	return c
}

// finish is called when the tree has all paths.
func (c *cloudEvent) finish(event *tree) {
	for _, n := range event.root.children {
		switch {
		case n.name == "data":
			c.data = n
		case n.slot >= 0 && n != c.base64:
			c.attributes = append(c.attributes, newAttribute(n))
		}
	}
}

// checkCloudEvent refuses an event that is no DetectMode, and reads data_base64.
func (d *Decoder) checkCloudEvent() *hit.Refusal {
	c := d.current.plan.cloud
	refusal := c.check("")
	if refusal != nil {
		return refusal
	}
	if c.data == nil {
		return nil
	}
	if !d.hasJSON() {
		c.data.clearValues()
		return nil
	}
	encoded := c.base64.value()
	if encoded.isMissing() {
		return nil
	}
	return d.readBase64(encoded)
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

// hasJSON reports whether the event's data is JSON, which is the default.
func (d *Decoder) hasJSON() bool {
	v := d.current.plan.cloud.contentType.value()
	if v.isMissing() {
		return true
	}
	text, ok := v.appendTo(d.scratch[:0])
	d.scratch = text
	return ok && isJSON(string(text))
}

func isJSON(contentType string) bool {
	kind := mediaType(contentType)
	return kind == "application/json" || kind == "text/json" || strings.HasSuffix(kind, "+json")
}

func mediaType(contentType string) string {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

// readBase64 reads data that a JSON event carries as base64.
func (d *Decoder) readBase64(encoded value) *hit.Refusal {
	data := d.current.plan.cloud.data
	for _, v := range data.tree.values[data.first:data.last] {
		if v.kind != kindAbsent {
			return newCloudEventRefusal("has both data and data_base64")
		}
	}
	if encoded.kind != kindText && encoded.kind != kindEscaped {
		return newCloudEventRefusal("data_base64 is " + encoded.String() + ": must be text")
	}
	text, ok := encoded.appendTo(d.scratch[:0])
	d.scratch = text
	start := len(d.texts)
	out, err := base64.StdEncoding.AppendDecode(d.texts, text)
	if !ok || err != nil {
		return newCloudEventRefusal("data_base64 is " + encoded.String() + ", which is not base64")
	}
	d.texts = out
	return d.readData(out[start:])
}

// readData reads an event's data, which must be JSON.
func (d *Decoder) readData(json []byte) *hit.Refusal {
	err := d.current.plan.cloud.data.readAll(json)
	if err != nil {
		return newCloudEventRefusal("its data should be JSON: " + err.Error())
	}
	return nil
}

func newCloudEventRefusal(detail string) *hit.Refusal {
	return &hit.Refusal{Reason: hit.BadJSON, Detail: "not a CloudEvent: " + detail}
}

func (d *Decoder) decodeWithoutRule() ([]hit.Hit, []hit.Reject, int) {
	m := &d.message
	mode, _ := detectMessageMode(m.Header)
	switch {
	case mode == NoCloudEvent:
		hits, rejects := d.hitDecoder.Decode(m.Counter, m.Stored, m.Body)
		for i := range rejects {
			if rejects[i].Reason == hit.NoRule {
				rejects[i].Kind = hit.OfEvent
			}
		}
		return hits, rejects, 0
	case mode == Binary, hit.Blank(m.Body):
		d.kind = hit.OfMessage
		d.reject(0, m.Body, hit.NoRule, noRuleDetail)
	default:
		d.unmatchedSplitter.Split(m.Body)
	}
	return d.hits, d.rejects, 0
}

// decodeMixed decodes a message on the subject of CloudEvents without a content mode. It decides per object,
// because collect joins hits of several callers. A hit must name its key, so that nothing counts by mistake.
func (d *Decoder) decodeMixed() ([]hit.Hit, []hit.Reject, int) {
	m := &d.message
	if !mayBeEvent(m.Body) { // the usual case, in one pass
		hits, rejects := d.hitDecoder.Decode("", m.Stored, m.Body)
		return hits, rejects, 0
	}
	d.hitDecoder.Begin("", m.Stored)
	d.mixedSplitter.Split(m.Body)
	d.freeBuffers()
	return d.hits, d.rejects, d.unmet
}

// decodeMixedItem reads an object. One with a specversion is an event.
func (d *Decoder) decodeMixedItem(item int, raw []byte) (more bool) {
	if mayBeEvent(raw) && (d.eventDetector.root.readAll(raw) != nil || d.eventDetector.values[0].kind != kindAbsent) {
		return d.decodeItem(item, raw)
	}
	h, refusal := d.hitDecoder.Object(raw)
	if refusal == nil {
		d.hits = append(d.hits, h)
		return true
	}
	d.rejects = append(d.rejects, hit.Reject{Reason: refusal.Reason, Detail: refusal.Detail, Item: item, Body: raw})
	return true
}

// mayBeEvent reports, without parsing the JSON, whether it may be an event. False is certain.
func mayBeEvent(json []byte) bool { return bytes.Contains(json, []byte(required[0])) }

func newEventDetector() *tree {
	t := newTree()
	for _, name := range required {
		t.add([]string{name})
	}
	t.finish()
	return t
}

func (d *Decoder) refuseCloudEvent(object []byte) *hit.Refusal {
	if !mayBeEvent(object) {
		return nil
	}
	err := d.eventDetector.root.readAll(object)
	if err != nil {
		return nil // not JSON: hit.Decoder has the better detail
	}
	for _, v := range d.eventDetector.values {
		if v.kind == kindAbsent {
			return nil
		}
	}
	return &hit.Refusal{Reason: hit.NoRule, Detail: noRuleDetail}
}
