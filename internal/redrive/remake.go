package redrive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/hit"
	"tallyroll/internal/rejects"
)

type reject struct {
	rejects.Message
	name string // a token of a subject
}

func newReject(m rejects.Message) *reject { return &reject{Message: m, name: m.Name()} }

// timing selects the time of a reject that is published again.
type timing string

const (
	keepTime   timing = "keep"   // its own
	nowTime    timing = "now"    // none: it counts when it is stored again
	storedTime timing = "stored" // the time at which the refused message was stored
)

var (
	errNotObject = errors.New("not a JSON object: mend it and publish it")
	errNoCounter = errors.New("names no counter, and its subject gives it none, or one that was too long for the " +
		"headers: add a key and publish it")
)

// bodyToPublish returns the body to publish. Its hits name their counters, because the subject will differ.
func (r *reject) bodyToPublish(ts timing) ([]byte, error) {
	switch {
	case r.isEvent():
		return r.eventBody()
	case r.Reason == hit.TooLarge:
		return r.editAll(ts)
	}
	return r.edit(r.Body, ts)
}

// editAll remakes each object of a message that was refused whole.
func (r *reject) editAll(ts timing) ([]byte, error) {
	items, rest := hit.Items(r.Body)
	if rest != nil {
		return nil, errNotObject
	}
	var objects [][]byte
	for _, item := range items {
		if len(item) == 0 {
			continue // nothing between two commas: there is nothing to lose
		}
		object, err := r.edit(item, ts)
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
	return slices.Concat([]byte("["), bytes.Join(objects, []byte(",")), []byte("]")), nil
}

// edit sets the time, and a key if it is missing. Nothing else changes.
func (r *reject) edit(body []byte, ts timing) ([]byte, error) {
	if hit.Blank(body) {
		body = []byte("{}")
	}
	if !hit.IsObject(body) {
		return nil, errNotObject
	}
	fields, err := fieldsOf(body)
	if err != nil {
		return nil, fmt.Errorf("cannot be edited: %w", err)
	}
	var kept [][]byte
	hasKey, changed := false, false
	for _, f := range fields {
		hasKey = hasKey || f.name == "key"
		if f.name == "ts" && ts != keepTime {
			changed = true
			continue
		}
		kept = append(kept, f.raw)
	}
	if !hasKey {
		if r.Counter == "" {
			return nil, errNoCounter
		}
		name, err := json.Marshal(r.Counter)
		if err != nil {
			return nil, err
		}
		kept = append(kept, append([]byte(`"key":`), name...))
		changed = true
	}
	if ts == storedTime {
		kept = append(kept, strconv.AppendInt([]byte(`"ts":`), r.Stored/1e6, 10))
		changed = true
	}
	if !changed {
		return body, nil
	}
	out := append([]byte("{"), bytes.Join(kept, []byte(","))...)
	return append(out, '}'), nil
}

// jsonField is a field of an object: its name, and its source text.
type jsonField struct {
	name string
	raw  []byte
}

func fieldsOf(object []byte) (out []jsonField, err error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	for d.More() {
		start := d.InputOffset()
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		text, _ := name.(string)
		out = append(out, jsonField{text, bytes.TrimLeft(object[start:d.InputOffset()], ", \t\r\n")})
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more follows the object")
	}
	return out, nil
}

// isAhead reports whether the hit's own time is in the future.
func (r *reject) isAhead(now time.Time) bool {
	body, err := r.edit(r.Body, keepTime)
	if err != nil {
		return false
	}
	h, err := hit.NewParser().Parse(body)
	return err == nil && h.At != hit.NoTime && h.At > now.UnixMilli()
}

// expectedRefusal returns why a reject would be refused again, or "" if it may count.
func (r *reject) expectedRefusal(ts timing, now time.Time) (why string) {
	if r.isEvent() {
		return r.expectedEventRefusal()
	}
	switch {
	case r.Reason == hit.TooLarge:
		return tooLarge
	case r.Reason == hit.BadTime && ts != keepTime:
		return ""
	case r.Reason == hit.TooLate && ts == keepTime:
		return "counts only with --ts now or stored"
	case r.Reason == hit.TooLate:
		return ""
	case r.Reason == hit.Future && ts == keepTime && r.isAhead(now):
		return "its time has not come: --ts now or stored"
	case r.Reason == hit.Future:
		return ""
	}
	return "would be refused again as it is"
}

var errNoSubject = errors.New("its subject is unknown, because the headers left no room for it: publish the " +
	"event itself")

// isIncrement reports whether it changed one of NATS's own counters. Earlier workers told that only in the
// detail.
func (r *reject) isIncrement() bool {
	return r.Kind == hit.OfIncrement || r.Kind == hit.OfHit && strings.HasPrefix(r.Detail, hit.IncrementHeader+" is ")
}

// isEvent reports whether rules read it. Its bytes stay unchanged: only the rules locate its time and names.
func (r *reject) isEvent() bool { return r.Kind != hit.OfHit }

// eventBody returns the body for a reject of an event, or of a message with events.
func (r *reject) eventBody() ([]byte, error) {
	switch {
	case r.Subject == "":
		return nil, errNoSubject
	// by itself, it could be read as several events
	case r.Kind == hit.OfEvent && r.Reason != hit.TooLarge && !hit.IsObject(r.Body):
		return nil, errNotObject
	}
	return r.Body, nil
}

const tooLarge = "counts only with a larger INGEST_MAX_HITS"

// expectedEventRefusal is expectedRefusal for an event.
func (r *reject) expectedEventRefusal() (why string) {
	switch r.Reason {
	case hit.NoRule, hit.Future: // there may be a rule now, and the event's time may have come
		return ""
	case hit.TooLarge:
		return tooLarge
	case hit.TooLate:
		return "would be refused again as it is: --ts does not change the time of an event"
	}
	return "would be refused again by the same rules"
}
