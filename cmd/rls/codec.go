package main

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto" // registers the codec that this one is made of
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	messages "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// codec also reads messages whose strings are not UTF-8, because Envoy sends the values of its clients'
// headers unchanged. Go's library refuses such a message, and Envoy would then let the request through, so
// clients could evade all limits. Bytes that are not UTF-8 become %XX.
type codec struct{}

var plainCodec = encoding.GetCodecV2(proto.Name)

func (codec) Name() string { return proto.Name }

func (codec) Marshal(v any) (mem.BufferSlice, error) { return plainCodec.Marshal(v) }

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := plainCodec.Unmarshal(data, v)
	message, ok := v.(messages.Message)
	if err == nil || !ok {
		return err
	}
	mended, ok := repair(nil, data.Materialize(), message.ProtoReflect().Descriptor())
	if !ok {
		return err
	}
	messages.Reset(message)
	return messages.Unmarshal(mended, message)
}

// repair appends a message with its strings in UTF-8. ok is false if the text is no message.
func repair(out, text []byte, descriptor protoreflect.MessageDescriptor) (_ []byte, ok bool) {
	for len(text) > 0 {
		number, kind, n := protowire.ConsumeTag(text)
		if n < 0 || number > protowire.MaxValidNumber {
			return nil, false
		}
		length := protowire.ConsumeFieldValue(number, kind, text[n:])
		if length < 0 {
			return nil, false
		}
		value, field := text[n:n+length], descriptor.Fields().ByNumber(number)
		text = text[n+length:]
		out = protowire.AppendTag(out, number, kind)
		if kind != protowire.BytesType || field == nil {
			out = append(out, value...)
			continue
		}
		inner, _ := protowire.ConsumeBytes(value)
		switch field.Kind() {
		case protoreflect.StringKind:
			inner = escape(inner)
		case protoreflect.MessageKind:
			if inner, ok = repair([]byte{}, inner, field.Message()); !ok {
				return nil, false
			}
		}
		out = protowire.AppendBytes(out, inner)
	}
	return out, true
}

func escape(text []byte) []byte {
	if utf8.Valid(text) {
		return text
	}
	var out []byte
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 {
			out = fmt.Appendf(out, "%%%02X", text[0])
		} else {
			out = append(out, text[:size]...)
		}
		text = text[size:]
	}
	return out
}
