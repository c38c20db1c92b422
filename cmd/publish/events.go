package main

import (
	"bytes"
	"errors"

	"tallyroll/internal/hit"
)

var errNoSubject = errors.New("its subject is not known, because the headers left no room for it: publish the event itself")

// isEvent reports whether rules read what was refused. Its bytes go out unchanged, because the rules alone know where
// in them the time and the names are.
func (r *reject) isEvent() bool { return r.Kind != hit.OfHit }

// events returns what a reject of an event, or of a message with events, is published as.
func (r *reject) events() ([]outgoing, error) {
	switch {
	case r.Subject == "":
		return nil, errNoSubject
	case r.Kind == hit.OfMessage:
		return []outgoing{{r.Body, 1}}, nil
	case r.Reason == hit.TooLarge:
		return r.splitEvents(), nil
	case !hit.IsObject(r.Body): // by itself, it could be read as several events
		return nil, errNotObject
	}
	return []outgoing{{r.Body, 1}}, nil
}

// splitEvents makes arrays of the events. Up to splitHits of them go out one by one: they made too many hits together.
// What is no object is refused again, by itself, and so is not lost.
func (r *reject) splitEvents() (out []outgoing) {
	items, rest := hit.Items(r.Body)
	var events [][]byte
	for _, item := range items {
		switch {
		case len(item) == 0: // nothing between two commas: there is nothing to lose
		case hit.IsObject(item):
			events = append(events, item)
		default:
			out = append(out, outgoing{asItem(item), 1})
		}
	}
	if rest != nil {
		out = append(out, outgoing{rest, 1})
	}
	size := splitHits
	if len(events) <= splitHits {
		size = 1
	}
	for len(events) > 0 {
		n := min(len(events), size)
		out = append(out, outgoing{asItem(bytes.Join(events[:n], []byte(","))), n})
		events = events[n:]
	}
	return out
}

// asItem makes an array of it, so that it is read as an item and nothing else.
func asItem(item []byte) []byte {
	return append(append([]byte("["), item...), ']')
}

// helpsEvent says why an event would be refused again; empty: it may count.
func (r *reject) helpsEvent() (why string) {
	switch r.Reason {
	case hit.NoRule, hit.Future: // there may be a rule now, and the event's time may have come
		return ""
	case hit.TooLarge: // the others of its message may have left it no room, but those that follow the first only
		if r.Kind == hit.OfEvent && (!hit.IsObject(r.Body) || r.Item != 0) {
			return ""
		}
	case hit.TooLate:
		return "would be refused again as it is: --ts does not change the time of an event"
	}
	return "would be refused again by the same rules"
}
