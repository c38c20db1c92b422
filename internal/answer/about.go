package answer

import (
	"context"
	"maps"
	"slices"
	"time"

	"tallyroll/internal/access"
	"tallyroll/internal/release"
	"tallyroll/internal/window"
)

// About returns what can be asked. The caller supplies what the settings turn on.
func (d *Service) About(ctx context.Context, on Features) (AboutAnswer, error) {
	out := AboutAnswer{Version: release.Version(), Namespace: d.Namespace, Features: on, Token: aboutToken(access.From(ctx))}
	layout, err := Read(ctx, d.Redis, func(ctx context.Context) (window.Layout, error) {
		layout, since, err := d.Reader.About(ctx)
		out.CountingSince = Since(since)
		return layout, err
	})
	if err != nil {
		return AboutAnswer{}, err
	}
	out.addTiers(layout.Tiers)
	out.addUniqueTiers(layout.UniqueTiers)
	return out, nil
}

// AboutAnswer lists what can be asked of a namespace.
type AboutAnswer struct {
	Version       string      `json:"version" doc:"The release of this service." example:"1.4.0"`
	Namespace     string      `json:"namespace" doc:"TALLYROLL_NAMESPACE: what this service answers about." example:"tallyroll"`
	CountingSince time.Time   `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is not known." example:"2026-10-01T08:00:00Z"`
	Tiers         []AboutTier `json:"tiers" doc:"The tiers of the namespace, the finest first."`
	Windows       []string    `json:"windows" doc:"Windows to offer, the shortest first: the usual ones that the tiers answer with at least one whole cell, and the longest of each tier. Any other window up to the longest is answered, too." example:"[\"1m\",\"5m\",\"15m\",\"1h\",\"6h\",\"24h\",\"7d\",\"30d\",\"32d\"]"`
	Steps         []string    `json:"steps" doc:"Steps of /v1/series to offer, the shortest first: the usual ones that are whole cells of a tier and fit into its window, and the cell of each tier. Any other step is rounded up to whole cells." example:"[\"1s\",\"5s\",\"10s\",\"30s\",\"1m\",\"5m\",\"15m\",\"30m\",\"1h\",\"3h\",\"6h\",\"12h\",\"1d\",\"1w\"]"`
	UniqueTiers   []AboutTier `json:"unique_tiers,omitempty" doc:"The tiers of uniques, the finest first: their cells are the shortest steps, and their windows the longest, of /v1/uniques and of series of uniques. Absent if the namespace has none."`
	Features      Features    `json:"features" doc:"What this service can do beyond totals."`
	Token         *AboutToken `json:"token,omitempty" doc:"What the token of the call may do; absent if the service needs none."`
}

// AboutToken is what a token may do.
type AboutToken struct {
	Name     string    `json:"name" doc:"What the file of tokens calls it; of a token of QUERY_TOKENS, the beginning of its SHA-256." example:"shop"`
	May      []string  `json:"may" doc:"Its rights: read, take, count, erase and admin, or some of them." example:"[\"read\"]"`
	Prefixes []string  `json:"prefixes,omitempty" doc:"The counters that it is about begin with one of these; absent if it is about all." example:"[\"shop.\"]"`
	Until    time.Time `json:"until,omitzero" doc:"When it ends; absent if it does not." example:"2027-01-01T00:00:00Z"`
}

func aboutToken(t *access.Token) *AboutToken {
	if t == nil {
		return nil
	}
	out := &AboutToken{Name: t.Name(), Prefixes: t.Prefixes(), Until: t.Until()}
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

// Features are on or off by the settings of this process, or missing in its release.
type Features struct {
	NATS    bool `json:"nats" doc:"This service is set to ask NATS: /v1/streams, /v1/rejects and /v1/watch answer, and so do requests over NATS." example:"true"`
	Limits  bool `json:"limits" doc:"/v1/take counts: QUERY_TAKE is any, or it is named and QUERY_LIMITS_FILE names a limit." example:"true"`
	Uniques bool `json:"uniques" doc:"The namespace has tiers of uniques: /v1/uniques estimates how many different values hits had." example:"true"`
	Watch   bool `json:"watch" doc:"This service is set to ask NATS, so /v1/watch tells the states of rules." example:"true"`
}

func (a *AboutAnswer) addTiers(tiers window.Tiers) {
	for _, t := range tiers {
		a.Tiers = append(a.Tiers, AboutTier{window.FormatDuration(t.Cell), window.FormatDuration(t.Window)})
	}
	a.Windows, a.Steps = windowsOf(tiers), stepsOf(tiers)
}

func (a *AboutAnswer) addUniqueTiers(tiers window.Tiers) {
	a.Features.Uniques = len(tiers) > 0
	for _, t := range tiers {
		a.UniqueTiers = append(a.UniqueTiers, AboutTier{window.FormatDuration(t.Cell), window.FormatDuration(t.Window)})
	}
}

func AboutExample() AboutAnswer {
	tiers, err := window.ParseTiers(window.DefaultTiers)
	if err != nil {
		panic(err) // they are our own
	}
	out := AboutAnswer{
		Version: "1.4.0", Namespace: "tallyroll", CountingSince: SinceExample, Features: Features{NATS: true, Limits: true, Watch: true},
	}
	out.addTiers(tiers)
	out.addUniqueTiers(window.Tiers{{Cell: 5 * time.Minute, Window: time.Hour}, {Cell: time.Hour, Window: 24 * time.Hour}, {Cell: 24 * time.Hour, Window: 32 * 24 * time.Hour}})
	return out
}

// usualWindows and usualSteps are common choices, each as it is most often written.
var (
	usualWindows = []string{"1m", "5m", "15m", "1h", "6h", "24h", "7d", "30d", "90d", "365d"}
	usualSteps   = []string{"1s", "5s", "10s", "30s", "1m", "5m", "15m", "30m", "1h", "3h", "6h", "12h", "1d", "1w"}
)

// windowsOf are the windows that tiers are good for: below a cell of its tier, one would be all uncertainty.
func windowsOf(tiers window.Tiers) []string {
	return durationsOf(usualWindows, func(length time.Duration) bool {
		for _, t := range tiers {
			if length <= t.Window {
				return length >= t.Cell
			}
		}
		return false
	}, tiers, func(t window.Tier) time.Duration { return t.Window })
}

func stepsOf(tiers window.Tiers) []string {
	return durationsOf(usualSteps, func(length time.Duration) bool {
		return slices.ContainsFunc(tiers, func(t window.Tier) bool { return length%t.Cell == 0 && length <= t.Window })
	}, tiers, func(t window.Tier) time.Duration { return t.Cell })
}

// durationsOf are the good ones of the usual durations, and one of each tier, by length, without repetitions.
func durationsOf(usual []string, good func(time.Duration) bool, tiers window.Tiers, own func(window.Tier) time.Duration) []string {
	texts := make(map[time.Duration]string)
	for _, t := range tiers {
		texts[own(t)] = window.FormatDuration(own(t))
	}
	for _, text := range usual {
		length, err := window.ParseDuration(text)
		if err != nil {
			panic(err) // they are our own
		}
		if _, has := texts[length]; has || good(length) {
			texts[length] = text
		}
	}
	out := make([]string, 0, len(texts))
	for _, length := range slices.Sorted(maps.Keys(texts)) {
		out = append(out, texts[length])
	}
	return out
}
