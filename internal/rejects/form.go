package rejects

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/trace"
	"tallyroll/internal/rules"
)

const (
	// Stream holds the rejects of all namespaces.
	Stream = "HITS_REJECTED"
	// Subjects are the subjects of that stream.
	Subjects      = subjectPrefix + ">"
	subjectPrefix = "hits_rejected."
)

// Subject is the subject of a namespace's rejects from a stream; * stands for all streams.
func Subject(namespace, stream string) string {
	if namespace == hit.DefaultNamespace {
		return subjectPrefix + stream
	}
	return subjectPrefix + stream + "." + hit.NamespaceToken(namespace)
}

// StreamOf returns the stream that a reject with this subject comes from.
func StreamOf(subject string) string {
	stream, _, _ := strings.Cut(strings.TrimPrefix(subject, subjectPrefix), ".")
	return stream
}

// HeaderNamespace names the only namespace that counts a message. On a reject, its worker refused the hit.
const HeaderNamespace = "Tallyroll-Namespace"

const (
	HeaderReason   = "Tallyroll-Reason"
	HeaderDetail   = "Tallyroll-Detail"
	HeaderStream   = "Tallyroll-Stream"    // that the message was in
	HeaderSequence = "Tallyroll-Sequence"  // of the message
	HeaderItem     = "Tallyroll-Item"      // index in the message
	HeaderStored   = "Tallyroll-Stored"    // when the message was: RFC 3339 with nanoseconds
	HeaderEncoding = "Tallyroll-Encoding"  // zstd, of a body that would not fit otherwise
	HeaderBodySize = "Tallyroll-Body-Size" // of the refused body, in bytes, if it would not fit as it is
	HeaderCounter  = "Tallyroll-Counter"   // that the message's subject gives to hits that name none
	HeaderKind     = "Tallyroll-Kind"      // what was refused, if it is no hit
	// Nats-Incr of the message, which a server takes only in streams of counters
	HeaderIncrement = "Tallyroll-Increment"
	HeaderSubject   = "Tallyroll-Subject" // of the message that was refused, by which its rules were found
)

const (
	// redriveToken begins a reject's own token of a subject when it is sent again.
	redriveToken = "redrive-"
	// maxSubject bounds a subject from a header, in bytes, as in rules.
	maxSubject = 1024
)

// Reject is a hit, or a whole message, that a worker has refused.
type Reject struct {
	hit.Reject
	Namespace string // whose worker has refused it; Publish sets it
	Stream    string // of the message
	Seq       uint64 // of the message
	Stored    int64  // when the message was, Unix nanoseconds
	Counter   string // of a hit that names no counter; empty: unknown
	Trace     string // the message's traceparent; empty: it has none
	Increment string // of a message with hit.IncrementHeader, its value
	Origin           // of a message that was read with rules
}

// New returns a reject that owns its body.
func New(stream string, seq uint64, stored int64, r hit.Reject) Reject {
	r.Body = bytes.Clone(r.Body)
	return Reject{Reject: r, Stream: stream, Seq: seq, Stored: stored}
}

// Name is a refused hit's unique token of a subject. The time stored distinguishes recreated streams'
// messages.
func (r *Reject) Name() string {
	return fmt.Sprintf("%s%s-%d-%d-%s", redriveToken, r.view(), r.Seq, r.Item, strconv.FormatInt(r.Stored, 36))
}

// view names the stream within its namespace. A stream's name has no slash.
func (r *Reject) view() string {
	if r.Namespace == hit.DefaultNamespace {
		return r.Stream
	}
	return hit.NamespaceToken(r.Namespace) + "/" + r.Stream
}

// Origin is what rules see of a message besides its body. By it, other rules can read a reject sent again.
type Origin struct {
	Subject string      // empty: unknown
	Header  nats.Header // as far as rules read it
	size    int         // bytes that it takes in a message
}

// NewOrigin copies the origin from a message's subject and headers.
func NewOrigin(subject string, h nats.Header) Origin {
	o := Origin{Subject: subject}
	for name, values := range h {
		if rules.IsEventHeader(name) && len(values) > 0 {
			if o.Header == nil {
				o.Header = make(nats.Header)
			}
			o.Header[name] = values[:1] // rules read no other
		}
	}
	header := make(nats.Header)
	o.AddTo(header, hit.OfMessage)
	o.size = HeaderSize(header)
	return o
}

// AddTo adds the origin to a message's headers, as a reject of this kind needs it.
func (o *Origin) AddTo(h nats.Header, kind hit.Kind) {
	if o.Subject != "" {
		h.Set(HeaderSubject, o.Subject)
	}
	if kind == hit.OfHit {
		return
	}
	for name, values := range o.Header {
		h[name] = values
	}
}

func (o *Origin) Size() int { return o.size }

// OriginalSubject returns the subject that decides a message's rules, and without rules its counter: its own,
// or for a reject sent again that of the refused message. It depends on the message alone, so replays agree.
func OriginalSubject(subject string, h nats.Header) string {
	if len(h) == 0 {
		return subject
	}
	original := h.Get(HeaderSubject)
	isRedriven := strings.HasPrefix(subject, redriveToken) || strings.Contains(subject, "."+redriveToken)
	if !isRedriven || original == "" || len(original) > maxSubject || !hit.ValidSubject(original) {
		return subject
	}
	return original
}

// Message returns the reject's message. If room is short, it cuts the detail, then compresses the body, and
// at last cuts that, too, but never the identity.
func (r Reject) Message(maxPayload int) (*nats.Msg, error) {
	detail := HeaderText(r.Detail)
	if len(r.Counter) > maxPayload/4 || hit.CheckName([]byte(r.Counter)) != nil {
		r.Counter = "" // no counter can have the name, or it leaves too little room for the rest
	}
	if r.Origin.size > maxPayload/4 {
		r.Origin = Origin{} // it leaves too little room, too
	}
	if trace.Size > maxPayload/16 {
		r.Trace = "" // it leaves too little room, too
	}
	longest := r.message("", zstdEncoding, len(r.Body)).Header
	room := maxPayload - HeaderSize(longest) - len(namesakeSuffix(longest))
	detail = clipText(detail, room/2)
	room -= len(detail) // what is left for the body
	if room < 1 {
		return nil, fmt.Errorf("NATS takes messages of at most %d bytes, which leaves no room for a reject in "+
			"addition to its headers (%d bytes): raise max_payload", maxPayload, maxPayload-room)
	}
	m := r.message(detail, "", 0)
	m.Data = r.Body
	if HeaderSize(m.Header)+len(namesakeSuffix(m.Header))+len(m.Data) <= maxPayload {
		return m, nil
	}
	if compressed := compressor.EncodeAll(r.Body, nil); len(compressed) <= room {
		m = r.message(detail, zstdEncoding, len(r.Body))
		m.Data = compressed
		return m, nil
	}
	m = r.message(detail, "", len(r.Body))
	m.Data = r.Body[:room]
	return m, nil
}

const (
	zstdEncoding = "zstd"
	maxBody      = 64 << 20 // bytes of the largest message that a NATS server can be set to take
)

// These options cause no error. By default, zstd would not compress text that repeats nothing.
var (
	compressor, _   = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithAllLitEntropyCompression(true))
	decompressor, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBody))
)

// BodyOf returns the refused body from its message, and how many bytes it had. If these are more, the body
// was cut, or something other than a worker encoded it.
func BodyOf(h nats.Header, data []byte) (body []byte, size int) {
	if h.Get(HeaderEncoding) == zstdEncoding {
		decoded, err := decompressor.DecodeAll(data, nil)
		if err != nil {
			return nil, max(1, len(data))
		}
		data = decoded
	}
	size, _ = strconv.Atoi(h.Get(HeaderBodySize)) // 0 without the header
	return data, max(size, len(data))
}

// message returns the message without its body. size is that of the refused body if the message has another.
func (r *Reject) message(detail, encoding string, size int) *nats.Msg {
	m := nats.NewMsg(Subject(r.Namespace, r.Stream))
	m.Header.Set(HeaderNamespace, r.Namespace)
	m.Header.Set(HeaderReason, string(r.Reason))
	m.Header.Set(HeaderDetail, detail)
	m.Header.Set(HeaderStream, r.Stream)
	m.Header.Set(HeaderSequence, strconv.FormatUint(r.Seq, 10))
	m.Header.Set(HeaderItem, strconv.Itoa(r.Item))
	m.Header.Set(HeaderStored, time.Unix(0, r.Stored).UTC().Format(time.RFC3339Nano))
	if r.Counter != "" {
		m.Header.Set(HeaderCounter, r.Counter)
	}
	if r.Kind != hit.OfHit {
		m.Header.Set(HeaderKind, string(r.Kind))
	}
	r.Origin.AddTo(m.Header, r.Kind)
	if r.Trace != "" {
		m.Header.Set(trace.Header, r.Trace)
	}
	if r.Increment != "" {
		m.Header.Set(HeaderIncrement, r.Increment)
	}
	if encoding != "" {
		m.Header.Set(HeaderEncoding, encoding)
	}
	if size > 0 {
		m.Header.Set(HeaderBodySize, strconv.Itoa(size))
	}
	m.Header.Set(jetstream.MsgIDHeader, fmt.Sprintf("%s:%d:%d", r.view(), r.Seq, r.Item))
	return m
}

// Parse parses a reject's headers. ok is false, and a field zero, if one is missing or invalid: no worker
// wrote it.
func Parse(h nats.Header) (r Reject, ok bool) {
	r.Namespace, r.Stream = h.Get(HeaderNamespace), h.Get(HeaderStream)
	r.Reason, r.Detail, r.Kind = hit.Reason(h.Get(HeaderReason)), h.Get(HeaderDetail), hit.Kind(h.Get(HeaderKind))
	seq, errSeq := strconv.ParseUint(h.Get(HeaderSequence), 10, 64)
	item, errItem := strconv.ParseUint(h.Get(HeaderItem), 10, 31)
	stored, errStored := hit.ParseRFC3339(h.Get(HeaderStored))
	if errSeq == nil {
		r.Seq = seq
	}
	if errItem == nil {
		r.Item = int(item)
	}
	if errStored == nil {
		r.Stored = stored.UnixNano()
	}
	if counter := h.Get(HeaderCounter); hit.CheckName([]byte(counter)) == nil {
		r.Counter = counter
	}
	r.Subject, r.Increment = h.Get(HeaderSubject), h.Get(HeaderIncrement)
	if r.Kind != hit.OfHit {
		r.Origin = NewOrigin(r.Subject, h)
	}
	return r, errSeq == nil && errItem == nil && errStored == nil && r.Namespace != "" && r.Reason != "" &&
		hit.ValidSubject(r.Stream) && !strings.ContainsAny(r.Stream, "./*>")
}

// namesakeSuffix distinguishes a reject from one whose message had the same sequence earlier.
func namesakeSuffix(h nats.Header) string { return "@" + h.Get(HeaderStored) }

// HeaderSize returns the size of headers in a message, in bytes.
func HeaderSize(h nats.Header) int {
	size := len("NATS/1.0\r\n\r\n")
	for name, values := range h {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return size
}

// HeaderText turns a text into one printable line.
func HeaderText(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return clip(s, 300)
}

// clipText cuts a text to at most n bytes, including an ellipsis.
func clipText(s string, n int) string {
	switch {
	case len(s) <= n:
		return s
	case n < len("…"):
		return ""
	}
	return clip(s, n-len("…"))
}

// clip cuts a text to at most n bytes, not counting the ellipsis that it adds.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// Reasons names all reasons, separated by commas.
var Reasons = func() string {
	names := make([]string, len(hit.Reasons))
	for i, r := range hit.Reasons {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}()
