package redrive

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/outbox"
	"tallyroll/internal/rejects"
)

// address gives the message of a reject its subject. mark is the place for the name.
func address(r *reject, pattern string) *outbox.Once {
	more := nats.Header{rejects.HeaderNamespace: {r.Namespace}} // workers of other namespaces may have counted the hit
	r.AddTo(more, r.Kind)                                       // the worker finds its rules by it
	return &outbox.Once{Subject: strings.Replace(pattern, mark, r.name, 1), ID: r.name, More: more}
}

const mark = ">"

// targets finds under which subjects streams take rejects again.
type targets struct {
	js      jetstream.JetStream
	subject string // all go below this one; empty: to where the refused message was
	known   map[string]target
}

// target is a subject with a mark in it; why says why there is none.
type target struct{ pattern, why string }

// find returns the target for rejects of a stream.
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
		return target{}, fmt.Errorf("look at stream %s: %w", stream, err)
	default:
		got = targetIn(stream, handle.CachedInfo().Config.Subjects)
	}
	if t.known == nil {
		t.known = map[string]target{}
	}
	t.known[stream] = got
	return got, nil
}

// targetIn chooses the first subject that has a wildcard, because each reject needs a subject of its own.
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
