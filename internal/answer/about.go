package answer

import (
	"context"
	"maps"
	"slices"
	"time"

	"tallyroll/internal/boot"
	"tallyroll/internal/window"
)

// AboutAnswer is the answer of GET /v1/about.
type AboutAnswer struct {
	Version       string      `json:"version" doc:"The release of this service." example:"1.4.0"`
	Namespace     string      `json:"namespace" doc:"TALLYROLL_NAMESPACE: what this service answers about." example:"tallyroll"`
	CountingSince time.Time   `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is not known." example:"2026-10-01T08:00:00Z"`
	Tiers         []AboutTier `json:"tiers" doc:"The tiers of the namespace, the finest first."`
	Windows       []string    `json:"windows" doc:"Windows to offer, the shortest first: the usual ones that the tiers answer with at least one whole cell, and the longest of each tier. Any other window up to the longest is answered, too." example:"[\"1m\",\"5m\",\"15m\",\"1h\",\"6h\",\"24h\",\"7d\",\"30d\",\"32d\"]"`
	Steps         []string    `json:"steps" doc:"Steps of /v1/series to offer, the shortest first: the usual ones that are whole cells of a tier and fit into its window, and the cell of each tier. Any other step is rounded up to whole cells." example:"[\"1s\",\"5s\",\"10s\",\"30s\",\"1m\",\"5m\",\"15m\",\"30m\",\"1h\",\"3h\",\"6h\",\"12h\",\"1d\",\"1w\"]"`
	Features      Features    `json:"features" doc:"What this service can do beyond totals."`
}

// AboutTier is a tier as TIERS has it.
type AboutTier struct {
	Cell   string `json:"cell" doc:"The length of its cells." example:"1s"`
	Window string `json:"window" doc:"The longest window that it answers." example:"1m"`
}

// Features are on or off by the settings of this process, or missing in its release.
type Features struct {
	NATS    bool `json:"nats" doc:"This service is set to ask NATS: /v1/streams and /v1/rejects answer, and so do requests over NATS." example:"true"`
	Limits  bool `json:"limits" doc:"/v1/take counts: QUERY_TAKE is any, or it is named and QUERY_LIMITS_FILE names a limit." example:"true"`
	Uniques bool `json:"uniques" doc:"This release can estimate how many distinct values hits had." example:"false"`
	Watch   bool `json:"watch" doc:"This release can tell the states of rules that watch totals." example:"false"`
}

// usualWindows and usualSteps are what people ask for. Each is written as it is most often said.
var (
	usualWindows = []string{"1m", "5m", "15m", "1h", "6h", "24h", "7d", "30d", "90d", "365d"}
	usualSteps   = []string{"1s", "5s", "10s", "30s", "1m", "5m", "15m", "30m", "1h", "3h", "6h", "12h", "1d", "1w"}
)

// windowsOf are the windows that tiers are good for. A window shorter than a cell of the tier that answers it would
// be all doubt.
func windowsOf(tiers window.Tiers) []string {
	return offered(usualWindows, func(length time.Duration) bool {
		for _, t := range tiers {
			if length <= t.Window {
				return length >= t.Cell
			}
		}
		return false
	}, tiers, func(t window.Tier) time.Duration { return t.Window })
}

// stepsOf are the steps that some tier can answer as they are.
func stepsOf(tiers window.Tiers) []string {
	return offered(usualSteps, func(length time.Duration) bool {
		return slices.ContainsFunc(tiers, func(t window.Tier) bool { return length%t.Cell == 0 && length <= t.Window })
	}, tiers, func(t window.Tier) time.Duration { return t.Cell })
}

// offered are those of the usual durations that are good, and one of each tier, by length. Each length stands once.
func offered(usual []string, good func(time.Duration) bool, tiers window.Tiers, own func(window.Tier) time.Duration) []string {
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

// About answers what can be asked. What the settings turn on, the caller knows.
func (d *Desk) About(ctx context.Context, on Features) (AboutAnswer, error) {
	out := AboutAnswer{Version: boot.Version(), Namespace: d.Namespace, Features: on}
	layout, err := Ask(ctx, d.Redis, func(ctx context.Context) (window.Layout, error) {
		layout, since, err := d.Reader.About(ctx)
		out.CountingSince = Since(since)
		return layout, err
	})
	if err != nil {
		return AboutAnswer{}, err
	}
	out.offer(layout.Tiers)
	return out, nil
}

// offer adds what tiers can answer.
func (a *AboutAnswer) offer(tiers window.Tiers) {
	for _, t := range tiers {
		a.Tiers = append(a.Tiers, AboutTier{window.FormatDuration(t.Cell), window.FormatDuration(t.Window)})
	}
	a.Windows, a.Steps = windowsOf(tiers), stepsOf(tiers)
}

func AboutExample() AboutAnswer {
	tiers, err := window.ParseTiers(window.DefaultTiers)
	if err != nil {
		panic(err) // they are our own
	}
	out := AboutAnswer{
		Version: "1.4.0", Namespace: "tallyroll", CountingSince: SinceExample, Features: Features{NATS: true, Limits: true},
	}
	out.offer(tiers)
	return out
}
