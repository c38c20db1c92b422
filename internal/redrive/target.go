package redrive

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/rejects"
)

// targets finds the subjects under which streams take rejects again.
type targets struct {
	js      jetstream.JetStream
	subject string // all go below this one; empty: to where the refused message was
	known   map[string]target
}

// onceOf returns a reject's destination. Its name replaces mark in the pattern.
func onceOf(r *reject, pattern string) *outbox.Once {
	more := nats.Header{rejects.HeaderNamespace: {r.Namespace}} // workers of other namespaces may have counted the hit
	r.AddTo(more, r.Kind)                                       // the worker finds its rules by it
	return &outbox.Once{Subject: strings.Replace(pattern, mark, r.name, 1), ID: r.name, More: more}
}

const mark = ">"

// target is a subject with a mark; why is the reason if it is missing.
type target struct{ pattern, why string }

func (t *targets) find(ctx context.Context, stream string) (target, error) {
	if t.subject != "" {
		return target{pattern: t.subject + "." + mark}, nil
	}
	if got, ok := t.known[stream]; ok {
		return got, nil
	}
	var got target
	handle, err := t.js.Stream(ctx, stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		got.why = fmt.Sprintf("stream %s is gone: give --subject", stream)
	case err != nil:
		return target{}, fmt.Errorf("read stream %s: %w", stream, err)
	default:
		got = targetIn(stream, handle.CachedInfo().Config.Subjects)
	}
	if t.known == nil {
		t.known = map[string]target{}
	}
	t.known[stream] = got
	return got, nil
}

// targetIn chooses the first subject with a wildcard, because each reject needs its own subject.
func targetIn(stream string, subjects []string) target {
	for _, s := range subjects {
		tokens := strings.Split(s, ".")
		place := -1
		for i, token := range tokens {
			if token == "*" || token == ">" {
				tokens[i], place = "redrive", i
			}
		}
		if place >= 0 {
			tokens[place] = mark
			return target{pattern: strings.Join(tokens, ".")}
		}
	}
	return target{why: fmt.Sprintf("no subject of stream %s has a wildcard: give --subject", stream)}
}
