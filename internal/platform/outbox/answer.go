package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Answer is the reply to one send. After a refusal, an earlier send of the same message may still be stored.
type Answer struct {
	n         uint64 // the last part of the subject of the answer, in base 36
	Stored    bool
	Duplicate bool   // the stream had stored a message with this Nats-Msg-Id before
	Stream    string // that stored or refused it
	Seq       uint64 // its sequence in that stream
	Refusal   error  // why it was not stored: ErrNoStream or a Refusal; nil if it was
	Code      int    // JetStream's error code, of a Refusal
	Last      uint64 // the message that is there, if the subject has one already; 0 if unknown
}

type Refusal struct {
	Code        int
	Description string
}

func (r Refusal) Error() string {
	return fmt.Sprintf("the stream refuses: %s (%d)", r.Description, r.Code)
}

// Lasts reports whether no later send of the same message will be stored, unless its stream is replaced or
// changed: the message does not suit the stream.
func (r Refusal) Lasts() bool {
	switch {
	case r.Code == CodeTooLarge, r.Code == codeHeadersTooLarge, r.Code == codeSealed, r.Code == codeRollUp,
		r.Code == codeTTLInvalid, r.Code == codeTTLDisabled,
		r.Code >= codeFirstOfCounters && r.Code <= codeLastOfCounters,
		r.Code >= codeFirstOfBatches && r.Code <= codeLastOfBatches,
		r.Code >= codeFirstOfSchedules && r.Code <= codeLastOfSchedules,
		r.Code == codeScheduleSource, r.Code == codeScheduler, r.Code == codeScheduleZone,
		r.Code == codeSourceHeader:
		return true
	}
	return false
}

// ErrNoStream is the refusal if nothing listens on the subject.
var ErrNoStream = errors.New("no stream takes the subject")

// Error codes of JetStream. The client's package has names for few of those that a publish gets.
const (
	CodeTooLarge        = 10054 // the message is above the stream's max_msg_size
	codeWrongLast       = 10071 // the subject has a message already
	codeHeadersTooLarge = 10097
	codeSealed          = 10109 // the stream takes no message any more
	codeRollUp          = 10111 // the stream takes no roll-ups, or not this one
	codeInProcess       = 10158 // a cluster is storing a message with the same Nats-Msg-Id

	codeTTLInvalid, codeTTLDisabled           = 10165, 10166 // of the message
	codeFirstOfCounters, codeLastOfCounters   = 10168, 10173 // increments of the stream's counters
	codeFirstOfBatches, codeLastOfBatches     = 10174, 10177 // atomic publish
	codeFirstOfSchedules, codeLastOfSchedules = 10188, 10192

	codeScheduleSource, codeScheduler, codeScheduleZone = 10203, 10212, 10223 // added after the other schedules

	codeSourceHeader = 10227 // a header that only a source may set
)

type pubAck struct {
	Stream    string `json:"stream"`
	Seq       uint64 `json:"seq"`
	Duplicate bool   `json:"duplicate"`
	Error     *struct {
		Code        int    `json:"code"`
		ErrCode     int    `json:"err_code"`
		Description string `json:"description"`
	} `json:"error"`
}

// parse parses a reply; ok is false for one of another subscriber, which proves nothing about storage.
func parse(m *nats.Msg) (a Answer, ok bool) {
	n, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 36, 64)
	if err != nil {
		return Answer{}, false
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return Answer{n: n, Refusal: ErrNoStream}, true
	}
	a, ok = parseBody(m.Data)
	a.n = n
	return a, ok
}

func parseBody(body []byte) (a Answer, ok bool) {
	var ack pubAck
	if json.Unmarshal(body, &ack) != nil {
		return Answer{}, false
	}
	a.Stream = ack.Stream
	if e := ack.Error; e != nil {
		a.Refusal = Refusal{e.ErrCode, e.Description}
		a.Code = e.ErrCode
		if a.Code == codeWrongLast { // the text ends in the message's sequence
			a.Last, _ = strconv.ParseUint(e.Description[strings.LastIndexByte(e.Description, ' ')+1:], 10, 64)
		}
		return a, true
	}
	a.Seq, a.Duplicate = ack.Seq, ack.Duplicate
	a.Stored = ack.Stream != "" && ack.Seq > 0
	return a, a.Stored
}

// StoredMessage parses JetStream's reply to STREAM.MSG.GET. found is false if the stream no longer has the
// message.
func StoredMessage(reply []byte) (header nats.Header, body []byte, found bool, err error) {
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Header []byte `json:"hdrs"`
			Data   []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply, &answer); err != nil {
		return nil, nil, false, err
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil, false, nil
	case answer.Error != nil:
		return nil, nil, false, answer.Error
	case answer.Message == nil:
		return nil, nil, false, errors.New("an answer without a message")
	case len(answer.Message.Header) > 0:
		header, err = nats.DecodeHeadersMsg(answer.Message.Header)
	}
	return header, answer.Message.Data, true, err
}
