package gate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/limit"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
)

const (
	limitsPath  = "/v1/limits"
	defaultKeys = 10
)

type limitsParams struct {
	Name []string   `query:"name,explode" doc:"Only the limits of these names. May repeat, up to 100 times." example:"[\"login\"]"`
	Top  api.Number `query:"top" doc:"The most keys to list of each limit: 0 to 100. Default: 10." example:"20"`
}

const maxNames = 100

func (p *limitsParams) Read(g api.Request) error {
	p.Name = g.Query["name"]
	return g.Singles(api.Text("top", api.NumberHint(0, busiestKeys), (*string)(&p.Top)))
}

// LimitsAnswer holds the named limits, with what this process decided under each.
type LimitsAnswer struct {
	AsOf    time.Time    `json:"as_of" doc:"When this was looked at, by the clock of this service." example:"2026-11-21T10:00:00.2Z"`
	Process string       `json:"process" doc:"Which process of query answers: another name after each start. All numbers here are its own; /metrics of all processes have those of all." example:"5f0c2a9e"`
	Counts  bool         `json:"counts" doc:"Whether takes are counted here, and keys can be reset: false with QUERY_TAKE=off." example:"true"`
	Limits  []LimitState `json:"limits" doc:"The limits of QUERY_LIMITS_FILE, by name."`
}

// LimitState is one limit and what this process decided under it.
type LimitState struct {
	Limit        string    `json:"limit" doc:"The name of the limit." example:"login"`
	Window       string    `json:"window" doc:"How far it looks back." example:"1m"`
	Max          int64     `json:"max" doc:"How many hits are allowed in the window." example:"5"`
	Policy       string    `json:"policy" doc:"How hits are kept: cells, log or stream; or concurrent: how many hold a place at once." example:"log"`
	Mode         string    `json:"mode" doc:"enforce; or shadow: it refuses nothing." example:"enforce"`
	Fail         string    `json:"fail" doc:"What happens without Redis: local, open or closed." example:"closed"`
	Key          string    `json:"key" doc:"The key template." example:"{key}"`
	Variables    []string  `json:"variables" doc:"What /v1/limit needs beside limit to look at a key." example:"[\"key\"]"`
	Since        time.Time `json:"since" doc:"Decisions are counted from this moment on: the start of the process, or when the limit came into the file." example:"2026-11-21T08:00:00Z"`
	Allowed      uint64    `json:"allowed" doc:"How many takes were allowed." example:"1200"`
	Refused      uint64    `json:"refused" doc:"How many were refused." example:"7"`
	Failed       uint64    `json:"failed" doc:"About how many nothing could be decided." example:"0"`
	WouldRefuse  uint64    `json:"would_refuse" doc:"How many would have been refused, if it were not in shadow mode." example:"0"`
	AllowedRate  float64   `json:"allowed_per_second" doc:"Takes allowed per second, over the last minute." example:"1.5"`
	RefusedRate  float64   `json:"refused_per_second" doc:"Takes refused per second, over the last minute." example:"0.1"`
	FailedRate   float64   `json:"failed_per_second" doc:"Takes per second about which nothing could be decided, over the last minute." example:"0"`
	WouldRate    float64   `json:"would_refuse_per_second" doc:"Takes per second that would have been refused, over the last minute." example:"0"`
	Share        *share    `json:"share,omitempty" doc:"What this process takes from Redis at once; absent if Redis decides about every take."`
	Bound        int64     `json:"bound" doc:"By how many hits each process of query can allow more than max in a window: less than this, for each that decides under the limit. 0 without a share." example:"0"`
	BusiestSince time.Time `json:"busiest_since" doc:"The busiest keys are those since this moment: at most 10 minutes ago." example:"2026-11-21T09:55:00Z"`
	Busiest      []busyKey `json:"busiest" doc:"The keys with most decisions, most first."`
	OthersAtMost uint64    `json:"others_at_most" doc:"No key that is not listed has had more decisions since then." example:"3"`
}

type share struct {
	Hits    int64   `json:"hits" doc:"How many hits at most." example:"100"`
	For     float64 `json:"for" doc:"For how many seconds. Then those that are not spent are given back." example:"1"`
	Unspent int64   `json:"unspent" doc:"How many hits of all keys this process has now, and has not spent: others are refused them." example:"37"`
}

// newProcess names a process at random, because a host name would describe the internal network.
func newProcess() string {
	name := make([]byte, 4)
	_, _ = rand.Read(name) // it never fails
	return hex.EncodeToString(name)
}

func (g *Gate) registerLimits(a *api.API) {
	api.AnswerQuery(a, a.Operation(huma.Operation{
		OperationID: "get-limits", Method: http.MethodGet, Path: limitsPath,
		Summary: "The limits, and what is decided under them",
		Description: "Every named limit, with the decisions of the process that answers, per second and since its start, and the keys that it decides about most often. " +
			"The keys are counted in bounded memory: a number is too large by at most error, and no key outside the list has more than others_at_most.",
		Responses: api.SuccessOnly("The limits, as of now.", limitsExample()),
	}), api.OverHTTP(g.findLimits))
}

// findLimits checks parameters and returns the limits. Its errors are for the client.
func (g *Gate) findLimits(_ context.Context, part string, p *limitsParams) (LimitsAnswer, error) {
	keys, err := p.Top.Parse("top", defaultKeys, 0, busiestKeys)
	if err == nil && len(p.Name) > maxNames {
		err = web.BadInput("name", "%d names: at most %d are allowed", len(p.Name), maxNames)
	}
	set := g.limits.named.Load()
	if len(p.Name) > 0 {
		set = make(limit.Set, len(p.Name))
	}
	for i := 0; err == nil && i < len(p.Name); i++ {
		set[p.Name[i]], err = g.limits.find(p.Name[i], "name")
	}
	if err != nil {
		return LimitsAnswer{}, web.InputProblem(err, part)
	}
	reserved, usages, now := g.limiter.Reserved(), *g.limits.usages.Load(), g.limits.now()
	out := LimitsAnswer{AsOf: now.UTC(), Process: g.process, Counts: g.limits.mode != TakeOff, Limits: []LimitState{}}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		use := usages[name]
		if use == nil {
			continue // a reload has just removed it
		}
		lim := set[name]
		state := use.state(now, int(keys))
		state.Limit, state.Window, state.Max = name, window.FormatDuration(lim.Window), lim.Max
		state.Policy, state.Fail, state.Key, state.Variables = string(lim.Policy), string(lim.Fail), lim.Key.String(), lim.Key.Variables()
		state.Mode, state.Bound = string(lim.Mode), lim.Over()
		if lim.Share.Hits > 0 {
			state.Share = &share{Hits: lim.Share.Hits, For: lim.Share.For.Seconds(), Unspent: reserved[name]}
		}
		out.Limits = append(out.Limits, state)
	}
	return out, nil
}

func limitsExample() LimitsAnswer {
	at := time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC)
	return LimitsAnswer{AsOf: at, Process: "5f0c2a9e", Counts: true, Limits: []LimitState{{
		Limit: "login", Window: "1m", Max: 5, Policy: "log", Mode: "enforce", Fail: "closed", Key: "{key}", Variables: []string{"key"},
		Since: at.Add(-2 * time.Hour), Allowed: 1200, Refused: 7, AllowedRate: 1.5, RefusedRate: .1,
		BusiestSince: at.Truncate(time.Minute).Add(-5 * time.Minute), Busiest: []busyKey{{Key: "alice", Decisions: 42, Refused: 7}}, OthersAtMost: 3,
	}}}
}
