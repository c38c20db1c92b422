package answer

import (
	"context"

	"tallyroll/internal/query/fresh"
	"tallyroll/internal/web"
)

// FreshParams are the parameters of a question about what its answer contains at least. The types of
// parameters embed it.
type FreshParams struct {
	After []string `query:"after,explode" json:"after,omitempty" doc:"The answer contains this message: the name of a stream, a colon and a sequence, as collect and NATS answer them. Until the message is counted, the answer waits. May repeat, at most 100 times." example:"[\"HITS:812\"]"`
	AgeParams
}

// AgeParams are those of FreshParams that name no message.
type AgeParams struct {
	MaxAge string `query:"max_age" hint:"a duration such as 2s, 500ms or 1m" json:"max_age,omitempty" doc:"How old as_of may be when the request comes, by Redis's clock: a number and a unit (ms, s, m, h). Until as_of is recent enough, the answer waits." example:"2s"`
	Wait   string `query:"wait" hint:"a duration from 0s to 10s, such as 2s or 500ms" json:"wait,omitempty" doc:"With after or max_age: how long the answer may wait before it is 503, from 0s to 10s. Default: 2s." example:"500ms"`
}

func (p *FreshParams) Condition() (fresh.Condition, error) { return p.condition("after", p.After) }

func (p *AgeParams) condition(afterParam string, after []string) (fresh.Condition, error) {
	return fresh.Names{After: afterParam, MaxAge: "max_age", Wait: "wait"}.Parse(after, p.MaxAge, p.Wait)
}

// conditional is implemented by parameters that may have the answer wait for a condition, and aboutCounters
// by those that name counters, of which only the shards have to be so far.
type (
	conditional interface {
		Condition() (fresh.Condition, error)
	}
	aboutCounters interface{ Input() *Input }
)

type holdKey struct{}

// hold is what a request waits for before Read reads for it first.
type hold struct {
	await func(context.Context) error
	over  bool // a request has one goroutine
}

// Hold returns a context in which Read waits until the condition holds that a request's parameters have, if
// they have one. Read waits once, after the request was checked: otherwise a caller would learn how far
// counting is from questions that it may not ask. If waits is not nil, it is called before the wait, and what
// it returns afterwards. Errors are for the client.
func Hold(ctx context.Context, w *fresh.Watcher, part string, params any,
	waits func() (resume func())) (context.Context, error) {
	p, ok := params.(conditional)
	if !ok {
		return ctx, nil
	}
	c, err := p.Condition()
	if err != nil || c.IsZero() {
		return ctx, web.InputProblem(err, part)
	}
	if about, ok := params.(aboutCounters); ok {
		c.Counters = about.Input().Keys
	}
	c.Waits = waits
	return context.WithValue(ctx, holdKey{}, &hold{await: func(ctx context.Context) error {
		return web.InputProblem(w.Await(ctx, c), part)
	}}), nil
}

// HeldError is why the condition of a request did not hold in time. It wraps an error for the client.
type HeldError struct{ error }

func (e HeldError) Unwrap() error { return e.error }
