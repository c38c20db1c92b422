package answer

import (
	"context"
	"time"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/platform/release"
	"tallyroll/internal/web/access"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

// About returns what can be asked. The caller supplies what the settings turn on.
func (d *Service) About(ctx context.Context, on Features) (AboutAnswer, error) {
	out := AboutAnswer{Version: release.Version(), TimeZones: release.Zones(), Namespace: d.Namespace, Features: on,
		Token: aboutToken(access.From(ctx))}
	found, err := Read(ctx, d.Redis, d.Reader.About)
	if err != nil {
		return AboutAnswer{}, err
	}
	out.CountingSince, out.Declared = Since(found.CountingSince), aboutDeclared(found)
	out.addTiers(found.Layout.Tiers)
	out.addUniqueTiers(found.Layout.UniqueTiers)
	return out, nil
}

// AboutAnswer lists what can be asked of a namespace.
type AboutAnswer struct {
	Version       string         `json:"version" doc:"The release of this service." example:"1.4.0"`
	TimeZones     string         `json:"time_zones" doc:"The version of the time zones in use, and where they are." example:"2026f of /usr/share/zoneinfo"`
	Namespace     string         `json:"namespace" doc:"TALLYROLL_NAMESPACE: what this service answers about." example:"tallyroll"`
	CountingSince time.Time      `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is unknown." example:"2026-10-01T08:00:00Z"`
	Tiers         []AboutTier    `json:"tiers" doc:"The tiers of the namespace, the finest first."`
	Windows       []string       `json:"windows" doc:"Windows to offer, the shortest first: the usual ones that the tiers answer with at least one whole cell, and the longest of each tier. Any other window up to the longest is answered, too." example:"[\"1m\",\"5m\",\"15m\",\"1h\",\"6h\",\"24h\",\"7d\",\"30d\",\"32d\"]"`
	Steps         []string       `json:"steps" doc:"Steps of /v1/series to offer, the shortest first: the usual ones that are whole cells of a tier and fit into its window, and the cell of each tier. Any other step is rounded up to whole cells." example:"[\"1s\",\"5s\",\"10s\",\"30s\",\"1m\",\"5m\",\"15m\",\"30m\",\"1h\",\"3h\",\"6h\",\"12h\",\"1d\",\"1w\"]"`
	UniqueTiers   []AboutTier    `json:"unique_tiers,omitempty" doc:"The tiers of uniques, the finest first: their cells are the shortest steps, and their windows the longest, of /v1/uniques and of series of uniques. Absent if the namespace has none."`
	Features      Features       `json:"features" doc:"What this service can do beyond totals."`
	Declared      *AboutDeclared `json:"declared,omitempty" doc:"What an operator declared about hits from before counting began (ingest --complete-from); absent if nothing."`
	Token         *AboutToken    `json:"token,omitempty" doc:"What the token of the call may do; absent if the service needs none."`
}

// AboutDeclared is an operator's declaration that older hits were imported.
type AboutDeclared struct {
	CompleteFrom time.Time `json:"complete_from" doc:"The moment from which no hit is missing, other than those that were lost later." example:"2026-09-01T00:00:00Z"`
	At           time.Time `json:"at" doc:"When it was declared." example:"2026-10-01T09:00:00Z"`
	By           string    `json:"by" doc:"Who declared it." example:"alice"`
}

func aboutDeclared(a read.About) *AboutDeclared {
	if a.Declared.From == 0 {
		return nil
	}
	return &AboutDeclared{Time(a.Declared.From), Time(a.Declared.At), a.Declared.By}
}

type AboutToken struct {
	Name     string    `json:"name" doc:"What the file of tokens calls it; of a token of QUERY_TOKENS, the beginning of its SHA-256." example:"shop"`
	May      []string  `json:"may" doc:"Its rights: read, take, count, erase and admin, or some of them." example:"[\"read\"]"`
	Limits   []string  `json:"limits,omitempty" doc:"The limits that it is about, and after a colon what their keys begin with. Absent if it is about all, or has prefixes alone: then it is about none." example:"[\"api:shop.\"]"`
	Prefixes []string  `json:"prefixes,omitempty" doc:"The counters that it is about begin with one of these; absent if it is about all." example:"[\"shop.\"]"`
	Until    time.Time `json:"until,omitzero" doc:"When it ends; absent if it does not." example:"2027-01-01T00:00:00Z"`
}

func aboutToken(t *access.Token) *AboutToken {
	if t == nil {
		return nil
	}
	out := &AboutToken{Name: t.Name(), Prefixes: t.Prefixes(), Limits: t.Limits(), Until: t.Until()}
	for _, right := range t.Rights() {
		out.May = append(out.May, string(right))
	}
	return out
}

// AboutTier is a tier as TIERS has it.
type AboutTier struct {
	Cell   string `json:"cell" doc:"The length of its cells." example:"1s"`
	Window string `json:"window" doc:"The longest window that it answers." example:"1m"`
}

func (a *AboutAnswer) addTiers(tiers window.Tiers) {
	for _, t := range tiers {
		a.Tiers = append(a.Tiers, AboutTier{human.FormatDuration(t.Cell), human.FormatDuration(t.Window)})
	}
	a.Windows, a.Steps = windowsOf(tiers), stepsOf(tiers)
}

func (a *AboutAnswer) addUniqueTiers(tiers window.Tiers) {
	a.Features.Uniques = len(tiers) > 0
	for _, t := range tiers {
		a.UniqueTiers = append(a.UniqueTiers, AboutTier{human.FormatDuration(t.Cell), human.FormatDuration(t.Window)})
	}
}

func AboutExample() AboutAnswer {
	tiers, err := window.ParseTiers(window.DefaultTiers)
	if err != nil {
		panic(err) // they are our own
	}
	out := AboutAnswer{
		Version: "1.4.0", TimeZones: "2026f of /usr/share/zoneinfo", Namespace: "tallyroll",
		CountingSince: SinceExample, Features: Features{NATS: true, Limits: true, Watch: true},
	}
	out.addTiers(tiers)
	out.addUniqueTiers(window.Tiers{{Cell: 5 * time.Minute, Window: time.Hour},
		{Cell: time.Hour, Window: 24 * time.Hour}, {Cell: 24 * time.Hour, Window: 32 * 24 * time.Hour}})
	return out
}
