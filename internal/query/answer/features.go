package answer

import (
	"maps"
	"slices"
	"time"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
)

// Features are on or off by the settings of this process, or missing in its release.
type Features struct {
	NATS    bool `json:"nats" doc:"This service is set to ask NATS: /v1/streams, /v1/rejects and /v1/watch answer, and so do requests over NATS." example:"true"`
	Limits  bool `json:"limits" doc:"/v1/take counts: QUERY_TAKE is any, or it is named and QUERY_LIMITS_FILE names a limit." example:"true"`
	Uniques bool `json:"uniques" doc:"The namespace has tiers of uniques: /v1/uniques estimates how many unique values hits had." example:"true"`
	Watch   bool `json:"watch" doc:"This service is set to ask NATS, so /v1/watch answers with the states of rules." example:"true"`
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
func durationsOf(usual []string, good func(time.Duration) bool, tiers window.Tiers,
	own func(window.Tier) time.Duration) []string {
	texts := make(map[time.Duration]string)
	for _, t := range tiers {
		texts[own(t)] = human.FormatDuration(own(t))
	}
	for _, text := range usual {
		length, err := human.ParseDuration(text)
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
