package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"tallyroll/internal/hit"
	"tallyroll/internal/rules"
)

// reject is a hit, or a whole message, that a worker has refused, put together from its parts.
type reject struct {
	name      string // what tells the refused hit from all others; a token of a subject
	namespace string // that has refused it
	reason    hit.Reason
	detail    string
	stream    string // of the message
	sequence  string
	item      string
	stored    time.Time // the message
	counter   string    // of a hit that names none; empty: not known
	kind      hit.Kind
	subject   string      // of the message; empty: it was read without rules, or is not known
	header    nats.Header // of the message, as far as rules look at it
	body      []byte

	positions []uint64 // in HITS_REJECTED, of all its parts

	open   atomic.Int32 // messages whose fate is not known
	repeat atomic.Int32 // messages that the stream had before
	failed atomic.Bool  // a message is not stored
}

// nameOf makes the name of a refused hit: which namespace has refused which item of which message. The time stored
// tells messages of streams that were made anew apart. A reject keeps its name if a replay has stored it again. ok is
// false for a message that no worker of the namespace has written.
func nameOf(h nats.Header, namespace string) (name string, ok bool) {
	stream, sequence, item := h.Get(hit.HeaderStream), h.Get(hit.HeaderSequence), h.Get(hit.HeaderItem)
	stored, err := time.Parse(time.RFC3339Nano, h.Get(hit.HeaderStored))
	if err != nil || h.Get(hit.HeaderNamespace) != namespace || h.Get(hit.HeaderReason) == "" ||
		checkToken(stream) != nil || strings.Contains(stream, "/") || !number10(sequence) || !number10(item) {
		return "", false
	}
	return hit.RedriveToken + hit.ViewOf(namespace, stream) + "-" + sequence + "-" + item + "-" + strconv.FormatInt(stored.UnixNano(), 36), true
}

func number10(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

// checkToken refuses what cannot be one token of a subject.
func checkToken(s string) error {
	err := checkSubject(s)
	if err != nil || strings.Contains(s, ".") {
		return fmt.Errorf("%q is not a token of a subject", s)
	}
	return nil
}

// rejectPart is a message of HITS_REJECTED.
type rejectPart struct {
	header   nats.Header
	position uint64
	data     []byte
}

// maxApart bounds the parts that wait for others of their reject.
const maxApart = 64 << 20

// assembly puts rejects together from their parts.
type assembly struct {
	namespace string // whose rejects they are
	waiting   map[string]*pieces
	order     []string // of waiting, the oldest first
	bytes     int
	dropped   int64 // rejects whose parts were too far apart
}

// pieces are the parts of a reject that have come.
type pieces struct {
	reject *reject
	bodies [][]byte // by number; nil: has not come
}

// add takes a part. It returns the reject if that is now whole, and nil if it is not. strange says that
// no worker of the namespace has written the message.
func (a *assembly) add(p rejectPart) (whole *reject, strange bool) {
	name, ok := nameOf(p.header, a.namespace)
	number, of, partOK := partOf(p.header.Get(hit.HeaderPart))
	if !ok || !partOK {
		return nil, true
	}
	w := a.waiting[name]
	if w == nil || len(w.bodies) != of {
		a.forget(name)
		w = &pieces{reject: newReject(name, p.header), bodies: make([][]byte, of)}
		if a.waiting == nil {
			a.waiting = map[string]*pieces{}
		}
		a.waiting[name] = w
		a.order = append(a.order, name)
	}
	a.bytes += len(p.data) - len(w.bodies[number-1])
	w.bodies[number-1] = append([]byte{}, p.data...) // never nil
	w.reject.positions = append(w.reject.positions, p.position)
	if slices.ContainsFunc(w.bodies, func(b []byte) bool { return b == nil }) {
		for a.bytes > maxApart && len(a.order) > 1 {
			a.forget(a.order[0])
			a.dropped++
		}
		return nil, false
	}
	a.forget(name)
	w.reject.body = slices.Concat(w.bodies...)
	return w.reject, false
}

func (a *assembly) forget(name string) {
	w := a.waiting[name]
	if w == nil {
		return
	}
	for _, b := range w.bodies {
		a.bytes -= len(b)
	}
	delete(a.waiting, name)
	a.order = slices.DeleteFunc(a.order, func(n string) bool { return n == name })
}

func newReject(name string, h nats.Header) *reject {
	r := &reject{
		name: name, namespace: h.Get(hit.HeaderNamespace), reason: hit.Reason(h.Get(hit.HeaderReason)), detail: h.Get(hit.HeaderDetail),
		stream: h.Get(hit.HeaderStream), sequence: h.Get(hit.HeaderSequence), item: h.Get(hit.HeaderItem),
		counter: h.Get(hit.HeaderCounter), kind: hit.Kind(h.Get(hit.HeaderKind)), subject: h.Get(hit.HeaderSubject),
	}
	for name, values := range h {
		if r.kind != hit.OfHit && rules.EventHeader(name) && len(values) > 0 {
			if r.header == nil {
				r.header = make(nats.Header)
			}
			r.header[name] = values[:1]
		}
	}
	r.stored, _ = time.Parse(time.RFC3339Nano, h.Get(hit.HeaderStored)) // nameOf has read it
	if hit.CheckName([]byte(r.counter)) != nil {
		r.counter = ""
	}
	return r
}

// partOf reads a header such as 1/2; without it, a message is the whole reject.
func partOf(text string) (number, of int, ok bool) {
	if text == "" {
		return 1, 1, true
	}
	first, second, _ := strings.Cut(text, "/")
	number, err1 := strconv.Atoi(first)
	of, err2 := strconv.Atoi(second)
	const most = 99_999
	return number, of, err1 == nil && err2 == nil && number >= 1 && number <= of && of <= most
}
