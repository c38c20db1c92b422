package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// answer is what came back for one send of a message.
type answer struct {
	id      uint64
	stored  bool
	stream  string // where it is stored,
	seq     uint64 // and at which place
	refusal error  // why it was not stored; nil with stored
	never   bool   // and will not be, however often it is sent
}

// noStream is the refusal where nothing listens on the subject.
type noStream struct{}

func (noStream) Error() string { return "no stream takes the subject" }

// errCodeTooLarge is JetStream's code for a message above the stream's max_msg_size.
const errCodeTooLarge = 10054

// pubAck is JetStream's answer to a publish.
type pubAck struct {
	Stream string `json:"stream"`
	Seq    uint64 `json:"seq"`
	Error  *struct {
		Code        int    `json:"code"`
		ErrCode     int    `json:"err_code"`
		Description string `json:"description"`
	} `json:"error"`
}

// parseAnswer reads a reply; ok is false for one that is not JetStream's,
// such as that of another subscriber, which says nothing about storage.
func parseAnswer(m *nats.Msg) (a answer, ok bool) {
	id, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 36, 64)
	if err != nil {
		return answer{}, false
	}
	a.id = id
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		a.refusal = noStream{}
		return a, true
	}
	var ack pubAck
	if json.Unmarshal(m.Data, &ack) != nil {
		return answer{}, false
	}
	if e := ack.Error; e != nil {
		a.refusal = fmt.Errorf("the stream refuses: %s (%d)", e.Description, e.ErrCode)
		a.never = e.ErrCode == errCodeTooLarge
		return a, true
	}
	a.stream, a.seq = ack.Stream, ack.Seq
	a.stored = ack.Stream != "" && ack.Seq > 0
	return a, a.stored
}
