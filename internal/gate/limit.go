package gate

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
)

const LimitPath = "/v1/limit"

func (g *Gate) registerLimit(a *api.API) {
	header := &huma.Param{
		Name: api.AnyHeader, In: web.InQuery, Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{"gold"}},
		Description: "Beside limit, if its key template has {header.NAME}: the request's header of that name, as in header.X-Plan=gold.",
	}
	look := a.Operation(huma.Operation{
		OperationID: "get-limit", Method: http.MethodGet, Path: LimitPath,
		Summary: "Whether hits would be allowed",
		Description: "Decides like POST /v1/take, and counts nothing. With window and max and without policy, it is about a counter of the streams: " +
			"the answer has as_of and complete, too. The status is 200 even if the hits would be refused.",
		Parameters: []*huma.Param{header},
		Responses:  api.SuccessOnly("The decision.", takeExample()),
		Metadata:   api.Tryout("/v1/limit?limit=login&key=alice", "/v1/limit?key=api-1&window=1m&max=100"),
	})
	api.AnswerQuery(a, look, func(ctx context.Context, p *takeItem) (*TakeOutput, error) { return g.Look(ctx, web.InQuery, p) })
	reset := a.Operation(huma.Operation{
		OperationID: "delete-limit", Method: http.MethodDelete, Path: LimitPath, DefaultStatus: http.StatusNoContent,
		Summary: "Forget the hits of a key", Description: "Afterwards the key has had no hit under the limit. Counters of the streams cannot be reset.",
		Parameters: []*huma.Param{header},
		Responses:  map[string]*huma.Response{"204": {Description: "The key has no hits now."}},
		Metadata:   api.Tryout("/v1/limit?limit=login&key=alice"),
	})
	describeForbidden(a, &reset)
	api.AnswerQuery(a, reset, func(ctx context.Context, p *resetParams) (*api.NoOutput, error) { return nil, g.reset(ctx, p) })
}

// Look checks an item and decides about it. Its errors are for the client.
func (g *Gate) Look(ctx context.Context, part string, item *takeItem) (*TakeOutput, error) {
	if item.Limit == "" && item.Policy == "" && (item.Window != "" || item.Max != "") {
		return g.judge(ctx, part, item)
	}
	take, err := g.limits.takeOf(item, "")
	if err != nil {
		return nil, web.InputProblem(err, part)
	}
	takes := []limit.Take{take}
	answer, err := g.limiter.Look(ctx, takes)
	if err != nil {
		return nil, web.InputProblem(g.limitError(ctx, err, takes, false), part)
	}
	return lookOutputOf(&answer), nil
}

// lookOutputOf is the answer to a look. It is an answer even if it says no.
func lookOutputOf(a *limit.Answer) *TakeOutput {
	out := takeOutputOf(a, false)
	out.Status, out.RetryAfter = http.StatusOK, ""
	return out
}

// resetParams is what DELETE /v1/limit takes.
type resetParams struct {
	Limit  string `query:"limit" doc:"The name of a limit of QUERY_LIMITS_FILE." example:"login"`
	Key    string `query:"key" doc:"Whose hits are forgotten." example:"alice"`
	Window string `query:"window" doc:"In place of limit, with QUERY_TAKE=any: the window of the takes." example:"1m"`
	Policy string `query:"policy" doc:"Beside window: the policy of the takes." example:"cells"`
	IP     string `query:"ip" doc:"Beside limit, if its key template has {ip}: the client's address." example:"203.0.113.7"`
	Method string `query:"method" doc:"Beside limit, if its key template has {method}." example:"POST"`
	Host   string `query:"host" doc:"Beside limit, if its key template has {host}." example:"shop.example"`
	Path   string `query:"path" doc:"Beside limit, if its key template has {path}." example:"/login"`
	header map[string]string
}

func (p *resetParams) Read(g api.Given) (err error) {
	p.header, err = g.Headers()
	if err != nil {
		return err
	}
	return g.Singles(
		api.Single{"limit", limitHint, &p.Limit},
		api.Single{"key", takeKeyHint, &p.Key},
		api.Single{"window", api.WindowHint, &p.Window},
		api.Single{"policy", policyHint, &p.Policy},
		api.Single{"ip", addressHint, &p.IP},
		api.Single{"method", methodHint, &p.Method},
		api.Single{"host", hostHint, &p.Host},
		api.Single{"path", pathHint, &p.Path},
	)
}

func (g *Gate) reset(ctx context.Context, p *resetParams) error {
	err := g.limits.mayCount()
	if err != nil {
		return err
	}
	item := &takeItem{Limit: p.Limit, Key: p.Key, Window: p.Window, Policy: p.Policy, IP: p.IP, Method: p.Method, Host: p.Host, Path: p.Path, Header: p.header}
	if p.Limit == "" && p.Window != "" {
		if p.Policy == "" {
			return web.BadInput("policy", "it is missing: allowed is %s", policyHint).In(web.InQuery)
		}
		item.Max = "1" // any: it is no part of what hits are kept under
	}
	take, err := g.limits.takeOf(item, "")
	if err != nil {
		return web.InputProblem(err, web.InQuery)
	}
	err = g.limiter.Reset(ctx, take)
	if err != nil {
		return g.limitError(ctx, err, []limit.Take{take}, false)
	}
	return nil
}
