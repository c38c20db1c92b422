package boot

import (
	"context"
	"strings"

	"github.com/rs/zerolog"
)

// The trace context of a request (W3C Trace Context, level 2) is the id under which the caller traces it. The
// programs log the trace id, and pass it on in messages. They measure nothing themselves.

const TraceHeader = "traceparent"

type traceKey struct{}

// WithTrace returns a context with the traceparent among the headers of a request or a message.
func WithTrace(ctx context.Context, header map[string][]string) context.Context {
	parent := TraceParent(header)
	if parent == "" {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, parent)
}

// TraceOf returns the traceparent of a context, or "".
func TraceOf(ctx context.Context) string {
	parent, _ := ctx.Value(traceKey{}).(string)
	return parent
}

// traceForm is a traceparent of version 00; an x is a hexadecimal digit in lower case.
const traceForm = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx"

// TraceSize is how many bytes of a message's headers it takes.
const TraceSize = len(TraceHeader) + len(": ") + len(traceForm) + len("\r\n")

// TraceParent returns the traceparent among headers, as version 00 writes it, or "" if it is missing, given
// several times, or malformed.
func TraceParent(header map[string][]string) string {
	values := header["Traceparent"] // as net/http writes it
	if len(values) == 0 {
		values = header[TraceHeader]
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
	case version == "ff", strings.Trim(TraceID(parent), "0") == "", strings.Trim(parent[36:52], "0") == "":
		return ""
	case version == "00" && more == "":
		return parent
	case version == "00" || more != "" && more[0] != '-':
		return ""
	}
	return "00" + parent[2:] // of a later version, all that this one knows
}

// TraceID returns the trace id of a traceparent, or "".
func TraceID(parent string) string {
	if parent == "" {
		return ""
	}
	return parent[3:35]
}

// traceHook adds the trace id to log lines with the context of a request (zerolog.Event.Ctx).
type traceHook struct{}

func (traceHook) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	if id := TraceID(TraceOf(e.GetCtx())); id != "" {
		e.Str("trace_id", id)
	}
}
