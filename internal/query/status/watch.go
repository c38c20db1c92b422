package status

import (
	"context"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/watch/history"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
)

// ruleStates answers the states of the rules of watch.
type ruleStates struct {
	*servers
	history history.History
}

const (
	defaultChanges, maxChanges = 100, 1000
	// maxStates bounds the states in one answer.
	maxStates = 1000
)

// watchParams is what GET /v1/watch takes.
type watchParams struct {
	Rule   string     `query:"rule" hint:"the name of a rule" doc:"Only this rule." example:"errors"`
	Key    string     `query:"key" hint:"name" doc:"Only the states of this counter, prefix or group." example:"http.5xx"`
	State  string     `query:"state" hint:"ok, pending, firing, resolved or unknown" doc:"Only this state, now and in the changes." enum:"ok,pending,firing,resolved,unknown" example:"firing"`
	Limit  api.Number `query:"limit" hint:"a whole number from 1 to 1000" doc:"The most changes to list: 1 to 1000. Default: 100." example:"100"`
	Before api.Number `query:"before" hint:"a position" doc:"The next page of changes: only those before this position, the last one of the page before." example:"812"`
}

const stateHint = "ok, pending, firing, resolved or unknown"

// WatchAnswer has the states of rules now, and how they have changed.
type WatchAnswer struct {
	EvaluatedAt time.Time             `json:"evaluated_at,omitzero" doc:"When the rules were evaluated last, by Redis's clock; absent if no watch has run yet. If it is more than a few seconds ago, no watch runs." example:"2026-11-21T10:00:00.4Z"`
	Rules       int                   `json:"rules" doc:"How many rules WATCH_FILE has." example:"2"`
	Counts      map[history.State]int `json:"counts" doc:"How many of the states that were asked for there are of each kind." example:"{\"firing\":1}"`
	States      []history.Standing    `json:"states" doc:"The states now, at most 1000: those that fire first, then unknown, pending, resolved and ok. A rule with group, top, each or limit has a state of its own, with an empty key, and one for each key for which its condition has held."`
	Changes     []history.Change      `json:"changes" doc:"The changes of states, the newest first."`
	Next        uint64                `json:"next,omitempty" doc:"What to set before to for the next page of changes; absent at the end." example:"712"`
}

func (s *ruleStates) register(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-watch", Method: http.MethodGet, Path: "/v1/watch",
		Summary: "The states of the rules of watch now, and their changes",
		Description: "The states of rules for counters, prefixes and groups, and the newest 10,000 changes, as the " +
			"program watch has stored them. With a token that has prefixes: only those of keys that begin with one. " +
			"Needs NATS: 501 if NATS_URL is set to nothing, 503 while NATS does not answer.",
		Responses: addNoNATS(a, api.SuccessOnly("The states and changes, as of now.", watchExample())),
	}), api.OverHTTP(s.find))
}

func (s *ruleStates) find(ctx context.Context, part string, p *watchParams) (WatchAnswer, error) {
	out := WatchAnswer{Counts: make(map[history.State]int), States: []history.Standing{}, Changes: []history.Change{}}
	limit, err := p.Limit.Parse("limit", defaultChanges, 1, maxChanges)
	if err != nil {
		return out, web.InputProblem(err, part)
	}
	before, err := p.Before.Parse("before", math.MaxInt64, 1, math.MaxInt64)
	if err != nil {
		return out, web.InputProblem(err, part)
	}
	if p.State != "" && !slices.Contains(history.States, history.State(p.State)) {
		return out, web.BadInput("state", "%s is not a state: must be %s", web.Excerpt(p.State),
			stateHint).Problem(part)
	}
	if p.Key != "" {
		if err := api.CheckKey("key", p.Key); err != nil {
			return out, web.InputProblem(err, part)
		}
	}
	token := access.From(ctx)
	if err := token.CheckKey(p.Key); err != nil {
		return out, err
	}
	if _, err := s.jetStream(); err != nil {
		return out, err
	}
	found := s.history.Report()
	if !found.Ready {
		return out, web.RetryLater("the states of the rules are being read: ask again in a second", "1")
	}
	matches := func(said history.KeyState) bool {
		return (p.Rule == "" || said.Rule == p.Rule) && (p.Key == "" || said.Key == p.Key) &&
			(p.State == "" || string(said.State) == p.State) &&
			(!token.HasPrefixes() || said.Key != "" && token.CheckKey(said.Key) == nil)
	}
	out.EvaluatedAt = found.Evaluated
	if !token.HasPrefixes() {
		out.Rules = found.Rules
	}
	for _, state := range found.States {
		if !matches(state.KeyState) {
			continue
		}
		out.Counts[state.State]++
		if len(out.States) < maxStates {
			out.States = append(out.States, state)
		}
	}
	for _, change := range slices.Backward(found.Changes) {
		if change.Position >= uint64(before) || !matches(change.KeyState) {
			continue
		}
		if int64(len(out.Changes)) == limit {
			out.Next = out.Changes[limit-1].Position
			break
		}
		change.GivenUp = found.GivenUp[change.Position]
		out.Changes = append(out.Changes, change)
	}
	return out, nil
}

func watchExample() WatchAnswer {
	at := time.Date(2026, 11, 21, 10, 0, 0, 4e8, time.UTC)
	asOf := at.Add(-200 * time.Millisecond)
	said := history.KeyState{
		Rule: "errors", Key: "http.5xx", State: history.Firing, Total: 131, Lower: 129, Upper: 133, Window: "5m",
		Condition: "above 100",
		AsOf:      &asOf, At: at,
	}
	return WatchAnswer{
		EvaluatedAt: at, Rules: 2, Counts: map[history.State]int{history.Firing: 1},
		States:  []history.Standing{{KeyState: said, Since: at}},
		Changes: []history.Change{{ID: "1kx0c1f2p3s40-812", KeyState: said, Previous: history.Pending, Position: 812}},
	}
}
