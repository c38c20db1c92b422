// Package trace carries the trace context of requests (W3C Trace Context) into log lines and messages.
package trace

import (
	"context"
	"strings"

	"github.com/rs/zerolog"
)

// Header is the header with the id under which the caller traces a request (W3C Trace Context, level 2). The
// programs log the trace id, and pass it on in messages. They record no spans.
const Header = "traceparent"

type traceKey struct{}

// With returns a context with the traceparent of the headers of a request or a message.
func With(ctx context.Context, header map[string][]string) context.Context {
	parent := Parent(header)
	if parent == "" {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, parent)
}

// Of returns the traceparent of a context, or "".
func Of(ctx context.Context) string {
	parent, _ := ctx.Value(traceKey{}).(string)
	return parent
}

// traceForm is a traceparent of version 00; an x is a hexadecimal digit in lower case.
const traceForm = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx"

// Size is how many bytes of a message's headers a traceparent takes.
const Size = len(Header) + len(": ") + len(traceForm) + len("\r\n")

// Parent returns the traceparent among headers, as version 00 writes it, or "" if it is missing, given
// several times, or malformed.
func Parent(header map[string][]string) string {
	values := header["Traceparent"] // as net/http writes it
	if len(values) == 0 {
		values = header[Header]
	}
	if len(values) != 1 || len(values[0]) < len(traceForm) {
		return ""
	}
	parent, more := values[0][:len(traceForm)], values[0][len(traceForm):]
	for i := range len(traceForm) {
		c := parent[i]
		if traceForm[i] == '-' && c != '-' || traceForm[i] == 'x' && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	version := parent[:2]
	switch {
	case version == "ff", strings.Trim(ID(parent), "0") == "", strings.Trim(parent[36:52], "0") == "":
		return ""
	case version == "00" && more == "":
		return parent
	case version == "00" || more != "" && more[0] != '-':
		return ""
	}
	return "00" + parent[2:] // of a later version, the fields that version 00 has
}

// ID returns the trace id of a traceparent, or "".
func ID(parent string) string {
	if parent == "" {
		return ""
	}
	return parent[3:35]
}

// Hook adds the trace id to log lines with the context of a request (zerolog.Event.Ctx).
type Hook struct{}

func (Hook) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	if id := ID(Of(e.GetCtx())); id != "" {
		e.Str("trace_id", id)
	}
}
