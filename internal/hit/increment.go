package hit

import (
	"fmt"
	"strconv"
)

// Headers by which nats-server marks a message that a producer's hit is not, as it is stored.
const (
	// IncrementHeader is that of a message that adds to one of NATS's own counters, in a stream with
	// allow_msg_counter (NATS ADR-49). The server overwrites it with the difference if a message was sourced.
	IncrementHeader = "Nats-Incr"
	// ScheduleHeader is that of a schedule, in a stream with allow_msg_schedules (NATS ADR-51). When it is due,
	// the server stores the message itself, without this header. ScheduleTarget is where, and never missing.
	ScheduleHeader = "Nats-Schedule"
	ScheduleTarget = "Nats-Schedule-Target"
	// MarkerHeader is that of a delete marker, in a stream with subject_delete_marker_ttl (NATS ADR-43).
	MarkerHeader = "Nats-Marker-Reason"
)

// Headers by which NATS or a client of it marks a message without a body that no producer's empty hit is.
const (
	// OperationHeader is that of a message which removes a key from a key-value bucket (NATS ADR-8).
	OperationHeader = "KV-Operation"
	// SizeHeader has the size of the body that the server has left out, as republish with headers_only does.
	SizeHeader = "Nats-Msg-Size"
)

// HasNoValue reports whether the headers of a message without a body say that it has no value.
func HasNoValue(header func(name string) string) bool {
	operation, size := header(OperationHeader), header(SizeHeader)
	return operation == "DEL" || operation == "PURGE" || size != "" && size != "0"
}

// ServerHeaders has the version of nats-server with which each came. It refuses these headers of clients, or
// for a marker those that belong to it, in streams without the setting. make servers checks both.
var ServerHeaders = map[string]string{IncrementHeader: "2.12", ScheduleHeader: "2.12", MarkerHeader: "2.11"}

// DecodeIncrement reads a message with IncrementHeader: increment hits of the subject, at the time stored. 0
// is no hit. The body is NATS's running total, and is not read. The result is valid as of Decode.
func (d *Decoder) DecodeIncrement(subject string, stored int64, increment string, body []byte) ([]Hit, []Reject) {
	d.Begin(subject, stored)
	n, refused := ParseIncrement(increment)
	switch {
	case refused != nil:
		d.reject(0, body, refused.Reason, refused.Detail)
	case n > 0:
		d.object.reset(stored)
		h := d.appendHit()
		refused := d.object.fill(h, subject)
		h.N = n
		if refused == nil && !d.producer {
			refused = d.limits.Judge(h, stored)
		}
		d.finishHit(0, body, refused)
	}
	for i := range d.rejects {
		d.rejects[i].Kind = OfIncrement
	}
	return d.hits, d.rejects
}

// ParseIncrement reads the value of IncrementHeader: 0 to MaxN hits.
func ParseIncrement(text string) (n int64, refused *Refusal) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > MaxN {
		return 0, &Refusal{BadCount, fmt.Sprintf("%s is %.40q: integers from 0 to %d are counted, and hits cannot be "+
			"taken back", IncrementHeader, text, int64(MaxN))}
	}
	return n, nil
}
