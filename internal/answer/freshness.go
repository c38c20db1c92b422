package answer

import (
	"context"

	"tallyroll/internal/fresh"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

// FreshParams are the parameters of a question about what its answer contains at least. The types of
// parameters embed it.
type FreshParams struct {
	After []string `query:"after,explode" json:"after,omitempty" doc:"The answer contains this message: the name of a stream, a colon and a sequence, as collect and NATS answer them. Until the message is counted, the answer waits. May repeat, at most 100 times." example:"[\"HITS:812\"]"`
	AgeParams
}

// AgeParams are those of FreshParams that name no message.
type AgeParams struct {
	MaxAge string `query:"max_age" json:"max_age,omitempty" doc:"How old as_of may be when the request comes, by Redis's clock: a number and a unit (ms, s, m, h). Until as_of is recent enough, the answer waits." example:"2s"`
	Wait   string `query:"wait" json:"wait,omitempty" doc:"Beside after or max_age: how long the answer may wait before it is 503, from 0s to 10s. Default: 2s." example:"500ms"`
}

func (p *FreshParams) Read(g api.Request) error {
	p.After = g.Query["after"]
	return p.AgeParams.Read(g)
}

func (p *AgeParams) Read(g api.Request) error {
	return g.Singles(api.Text("max_age", fresh.MaxAgeHint, &p.MaxAge), api.Text("wait", fresh.WaitHint, &p.Wait))
}

func (p *FreshParams) Condition() (fresh.Condition, error) { return p.condition("after", p.After) }

func (p *AgeParams) condition(afterParam string, after []string) (fresh.Condition, error) {
	return fresh.Names{After: afterParam, MaxAge: "max_age", Wait: "wait"}.Parse(after, p.MaxAge, p.Wait)
}

// Await waits until the condition holds that a request's parameters have, if they have one. It calls waits,
// if that is not nil, before it waits. Its errors are for the client.
func Await(ctx context.Context, w *fresh.Watcher, part string, params any, waits func()) error {
	p, ok := params.(interface {
		Condition() (fresh.Condition, error)
	})
	if !ok {
		return nil
	}
	c, err := p.Condition()
	if about, ok := params.(interface{ Input() *Input }); ok {
		c.Counters = about.Input().Keys
	}
	if err == nil {
		c.Waits = waits
		err = w.Await(ctx, c)
	}
	return web.InputProblem(err, part)
}
