package window

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// summary finds the counters with most hits in bounded memory: the Space-Saving
// algorithm of A. Metwally, D. Agrawal and A. El Abbadi, "Efficient Computation
// of Frequent and Top-k Elements in Data Streams", ICDT 2005.
//
// It lists at most size counters. A listed counter has at most its count of hits,
// and one that is not listed has at most floor, which is at most all hits
// divided by size.
type summary struct {
	size   int
	floor  int64
	listed map[string]*summaryEntry
	order  smallestFirst // the same entries, as a heap
}

type summaryEntry struct {
	name  string
	count int64
	at    int // in the heap
}

func newSummary(size int) *summary {
	return &summary{size: size, listed: make(map[string]*summaryEntry, size)}
}

// add counts n hits of a counter. One that is not listed takes the place of the
// counter with the smallest count, and could have had as many hits as that one.
func (s *summary) add(name string, n int64) {
	if e := s.listed[name]; e != nil {
		e.count = addCounts(e.count, n)
		s.order.sink(e.at)
		return
	}
	if len(s.order) < s.size {
		s.insert(&summaryEntry{name: name, count: addCounts(s.floor, n)})
		return
	}
	e := s.order[0]
	delete(s.listed, e.name)
	s.floor = e.count
	e.name, e.count = name, addCounts(e.count, n)
	s.listed[name] = e
	s.order.sink(0)
}

func (s *summary) insert(e *summaryEntry) {
	e.at = len(s.order)
	s.listed[e.name] = e
	s.order = append(s.order, e)
	s.order.rise(e.at)
}

// smallestFirst is a heap whose entries know their places. container/heap would
// call through an interface, and this runs for every counter of every batch.
type smallestFirst []*summaryEntry

// sink puts an entry in its place whose count has grown.
func (h smallestFirst) sink(i int) {
	e := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if right := child + 1; right < len(h) && h[right].count < h[child].count {
			child = right
		}
		if h[child].count >= e.count {
			break
		}
		h[i] = h[child]
		h[i].at = i
		i = child
	}
	h[i], e.at = e, i
}

// rise puts an entry in its place that has come to the end.
func (h smallestFirst) rise(i int) {
	e := h[i]
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].count <= e.count {
			break
		}
		h[i] = h[parent]
		h[i].at = i
		i = parent
	}
	h[i], e.at = e, i
}

// summaryVersion is the first byte of a summary as Redis keeps it. The floor
// follows, then each listed counter: the length of its name, the name, its
// count. All numbers are unsigned varints.
const summaryVersion = 1

func (s *summary) encode() string {
	size := 1 + binary.MaxVarintLen64
	for _, e := range s.order {
		size += len(e.name) + 2 + 5 // what most of them take
	}
	out := append(make([]byte, 0, size), summaryVersion)
	out = binary.AppendUvarint(out, uint64(s.floor))
	for _, e := range s.order {
		out = binary.AppendUvarint(out, uint64(len(e.name)))
		out = append(out, e.name...)
		out = binary.AppendUvarint(out, uint64(e.count))
	}
	return string(out)
}

// parseSummary reads what encode wrote.
func parseSummary(size int, text string) (*summary, error) {
	floor, entries, err := decodeSummary(text)
	if err != nil {
		return nil, err
	}
	s := newSummary(size)
	s.floor = floor
	for i := range entries {
		s.insert(&entries[i])
	}
	if len(s.listed) < len(s.order) {
		return nil, errors.New("it lists a counter twice")
	}
	return s, nil
}

var errSummaryEnds = errors.New("it ends early")

// decodeSummary is the part of parseSummary that a reader needs. The names are
// parts of the text.
func decodeSummary(text string) (floor int64, entries []summaryEntry, err error) {
	if text == "" {
		return 0, nil, errSummaryEnds
	}
	if text[0] != summaryVersion {
		return 0, nil, fmt.Errorf("it has version %d; this program knows version %d", text[0], summaryVersion)
	}
	floor, text, err = takeCount(text[1:])
	for err == nil && text != "" {
		var length, count int64
		var name string
		if length, text, err = takeCount(text); err != nil {
			break
		}
		if length > int64(len(text)) {
			return 0, nil, errSummaryEnds
		}
		name, text = text[:length], text[length:]
		if count, text, err = takeCount(text); err == nil {
			entries = append(entries, summaryEntry{name: name, count: count})
		}
	}
	if err != nil {
		return 0, nil, err
	}
	return floor, entries, nil
}

// maxCountBytes is the length of the largest int64 as a varint.
const maxCountBytes = 9

// takeCount takes a varint off the text.
func takeCount(text string) (n int64, rest string, err error) {
	for i := range min(len(text), maxCountBytes) {
		n |= int64(text[i]&0x7f) << (7 * i)
		if text[i] < 0x80 {
			return n, text[i+1:], nil
		}
	}
	if len(text) < maxCountBytes {
		return 0, "", errSummaryEnds
	}
	return 0, "", errors.New("it has a number that is no count")
}
