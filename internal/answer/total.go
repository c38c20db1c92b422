package answer

import (
	"slices"
	"time"

	"tallyroll/internal/window"
)

// TotalAnswer has a total for each counter and window, all of one moment.
type TotalAnswer struct {
	AsOf   time.Time `json:"as_of" doc:"Every hit stored before this moment is in the answer. 1970-01-01T00:00:00Z if some stream has not been counted yet." example:"2026-11-21T10:00:00.2Z"`
	Totals []Total   `json:"totals" doc:"A total for every counter and window: the first counter with each of the windows, then the next one."`
}

// Total is the hits of one counter in one range, and how exact that is.
type Total struct {
	Key           string       `json:"key" doc:"The counter, or the prefix of a sum." example:"api-1"`
	Window        string       `json:"window,omitempty" doc:"The window as it was asked for, such as 24h or today; absent for a range." example:"24h"`
	From          time.Time    `json:"from" doc:"The start of the window." example:"2026-11-20T10:00:00Z"`
	To            time.Time    `json:"to" doc:"The end of the window, not included." example:"2026-11-21T10:00:00Z"`
	Total         int64        `json:"total" doc:"The hits in the window. If its start cuts a cell, that cell counts in proportion to the time inside, rounded." example:"1234"`
	Lower         int64        `json:"lower" doc:"There were at least this many hits: without the cell that is cut. The truth is between lower and upper." example:"1229"`
	Upper         window.Bound `json:"upper" nullable:"true" doc:"There were at most this many hits: with the whole of the cell that is cut. Null if nobody knows: the window ends more than 5 seconds after as_of, so nobody has counted lately." example:"1241"`
	Cell          string       `json:"cell" doc:"The length of the cells that were added up." example:"15m"`
	Complete      bool         `json:"complete" doc:"False if hits of the window are known to be missing, or may be: counting began, or hits were discarded unread, after from; or upper is null." example:"true"`
	CountingSince time.Time    `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is not known. If complete is false, upper is a number and from is later than this, hits were lost." example:"2026-10-01T08:00:00Z"`
	*SumOver
}

// SumOver is the part that only sums have: exported for encoding/json, a pointer so that totals can be
// compared.
type SumOver struct {
	Counters int        `json:"counters" required:"false" doc:"Of a sum: how many counters have hits in the window, or may have some because only a part of a cell lies in it." example:"12"`
	Groups   []SumGroup `json:"groups,omitempty" doc:"Of a sum with group: the sums of the groups, the largest first; those with the same total by name."`
}

// SumGroup is the sum over the counters whose names have their first parts in common.
type SumGroup struct {
	Group    string       `json:"group" doc:"The parts that the names have in common." example:"shop.eu"`
	Counters int          `json:"counters" doc:"How many counters have hits in the window, or may have some." example:"12"`
	Total    int64        `json:"total" doc:"The sum of their totals." example:"1234"`
	Lower    int64        `json:"lower" doc:"There were at least this many hits." example:"1229"`
	Upper    window.Bound `json:"upper" nullable:"true" doc:"There were at most this many hits; null if that of the sum is." example:"1241"`
}

// TotalOf returns the public form of an answer that is whole up to asOf. windowText is empty for a range.
func TotalOf(key, windowText string, a window.Answer, asOf int64) Total {
	return Total{
		Key: key, Window: windowText, From: Time(a.Range.From), To: Time(a.Range.To),
		Total: a.Total, Lower: a.Lower, Upper: a.Range.AtMost(a.Upper, asOf),
		Cell: window.FormatDuration(a.Tier.Cell), Complete: a.Complete && !a.Range.Outruns(asOf), CountingSince: Since(a.CountingSince),
	}
}

func TotalExample() TotalAnswer {
	return TotalAnswer{
		AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC),
		Totals: []Total{{
			Key: "api-1", Window: "24h", From: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC), To: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC),
			Total: 1234, Lower: 1229, Upper: 1241, Cell: "15m", Complete: true, CountingSince: SinceExample,
		}},
	}
}

type windowed[A any] struct {
	Answer A
	Past   bool // all windows ended before now: only late hits can change the numbers
}

func endedBefore(answers []window.Answer, now int64) bool {
	return !slices.ContainsFunc(answers, func(a window.Answer) bool { return a.Range.To >= now })
}
