package main

import (
	"bytes"
	"fmt"
	"net/url"
	"unicode/utf8"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto" // registers the codec that this one is made of
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	messages "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// codec also reads requests whose strings are not UTF-8, because Envoy sends the values of its clients'
// headers unchanged. Go's library refuses such a message, and Envoy would then let the request through, so
// clients could evade all limits. The bytes pass the library as %XX, and are restored, so that distinct
// values keep distinct keys.
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
	err = messages.Unmarshal(mended, message)
	if req, ok := v.(*rls.RateLimitRequest); ok && err == nil {
		restore(req)
	}
	return err
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
	if utf8.Valid(text) && bytes.IndexByte(text, '%') < 0 {
		return text
	}
	var out []byte
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 || r == '%' {
			out = fmt.Appendf(out, "%%%02X", text[0])
		} else {
			out = append(out, text[:size]...)
		}
		text = text[size:]
	}
	return out
}

// restore undoes escape.
func restore(req *rls.RateLimitRequest) {
	req.Domain = unescape(req.Domain)
	for _, d := range req.Descriptors {
		for _, e := range d.Entries {
			e.Key, e.Value = unescape(e.Key), unescape(e.Value)
		}
	}
}

func unescape(text string) string {
	out, _ := url.PathUnescape(text) // escape writes no other %
	return out
}
