package main

import "sort"

// maxSpans bounds what is remembered of where messages were stored: 1 MB. One
// producer alone needs one span a stream, others that publish meanwhile part it.
const maxSpans = 1 << 16

// span is a run of sequences in a stream.
type span struct{ first, last uint64 }

// places are the sequences at which messages were stored.
type places struct {
	streams map[string][]span // in order, apart from each other
	spans   int
	left    int64 // messages that found no room here
}

// add remembers a message. Acknowledgements come nearly in the order of the stream.
func (p *places) add(stream string, seq uint64) {
	s := p.streams[stream]
	i := sort.Search(len(s), func(i int) bool { return s[i].first > seq }) // the first span after seq
	if i > 0 && seq <= s[i-1].last {
		return // stored before, and acknowledged again
	}
	before := i > 0 && s[i-1].last+1 == seq
	after := i < len(s) && s[i].first == seq+1
	switch {
	case before && after:
		s[i-1].last = s[i].last
		s = append(s[:i], s[i+1:]...)
		p.spans--
	case before:
		s[i-1].last = seq
	case after:
		s[i].first = seq
	case p.spans == maxSpans:
		p.left++
		return
	default:
		s = append(s, span{})
		copy(s[i+1:], s[i:])
		s[i] = span{seq, seq}
		p.spans++
	}
	if p.streams == nil {
		p.streams = map[string][]span{}
	}
	p.streams[stream] = s
}

// holds reports whether a message at this place was remembered.
func (p *places) holds(stream string, seq uint64) bool {
	s := p.streams[stream]
	i := sort.Search(len(s), func(i int) bool { return s[i].first > seq })
	return i > 0 && seq <= s[i-1].last
}
