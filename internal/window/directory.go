package window

import (
	"fmt"
	"maps"
	"slices"
)

// directory is what a namespace holds once, beside its shards: the layout and the list of
// streams. Every answer depends on it and it seldom changes, so a Reader keeps what it
// has read and compares that with what Redis has in each round trip.
type directory struct {
	layout  Layout
	id      string            // see Store.ID
	streams []string          // sorted by name
	listed  map[string]Listed // by name
	began   int64             // see beganField; 0 if no stream has ended

	record string            // of the layout, as Redis has it
	list   map[string]string // of the streams, as Redis has it
}

// parseDirectory parses the values of the two keys. Its errors name the key.
func parseDirectory(k keys, record string, list map[string]string) (*directory, error) {
	layout, err := parseLayoutRecord(record)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", k.layout(), err)
	}
	listed, err := parseList(list)
	if err != nil {
		return nil, &ForeignError{k.streams(), err}
	}
	began, err := parseBegan(list[beganField])
	if err != nil {
		return nil, &ForeignError{k.streams(), err}
	}
	return &directory{
		layout: layout.Layout, id: layout.id, streams: slices.Sorted(maps.Keys(listed)), listed: listed, began: began,
		record: record, list: list,
	}, nil
}

// is reports whether Redis still has the same values.
func (d *directory) is(record string, list map[string]string) bool {
	return d.record == record && maps.Equal(d.list, list)
}
