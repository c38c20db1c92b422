package answer

import (
	"bytes"
	"encoding/csv"
	"slices"
	"strconv"
	"strings"
	"time"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/internal/window/calendar"
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
	Upper         window.Bound `json:"upper" nullable:"true" doc:"There were at most this many hits: with the whole of the cell that is cut. Null if it is unknown: the window ends more than 5 seconds after as_of, so no worker has counted lately; or a cell has 2⁶² hits or more, which it cannot count." example:"1241"`
	Cell          string       `json:"cell" doc:"The length of the cells that were added up." example:"15m"`
	Complete      bool         `json:"complete" doc:"False if hits of the window are known to be missing, or may be: counting began, or hits were discarded unread, after from; or upper is null." example:"true"`
	CountingSince time.Time    `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is unknown. If complete is false, upper is a number and from is later than this, hits were lost." example:"2026-10-01T08:00:00Z"`
	Overflow      string       `json:"overflow,omitempty" doc:"A counter that may have some of the hits, because new names had no room in the window (INGEST_MAX_NAMES): total and lower leave its hits out, and upper includes them. Mostly absent." example:"web.~other.7"`
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
	Upper    window.Bound `json:"upper" nullable:"true" doc:"There were at most this many hits; null if it is unknown." example:"1241"`
}

// TotalOf returns the public form of an answer that is whole up to asOf. windowText is empty for a range.
func TotalOf(key, windowText string, a window.Answer, asOf int64) Total {
	return Total{
		Key: key, Window: windowText, From: Time(a.Range.From), To: Time(a.Range.To),
		Total: a.Total, Lower: a.Lower, Upper: a.Range.AtMost(a.Upper, asOf),
		Cell: human.FormatDuration(a.Tier.Cell), Complete: a.Complete && !a.Range.Outruns(asOf),
		CountingSince: Since(a.CountingSince), Overflow: a.Overflow,
	}
}

func TotalExample() TotalAnswer {
	return TotalAnswer{
		AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC),
		Totals: []Total{{
			Key: "api-1", Window: "24h", From: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC),
			To:    time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC),
			Total: 1234, Lower: 1229, Upper: 1241, Cell: "15m", Complete: true, CountingSince: SinceExample,
		}},
	}
}

// endedBefore reports whether the windows of all answers ended before now.
func endedBefore(answers []window.Answer, now int64) bool {
	return !slices.ContainsFunc(answers, func(a window.Answer) bool { return a.Range.To >= now })
}

// Series is a counter's or a sum's hits, or numbers of unique values, step by step.
type Series struct {
	Key            string     `json:"key" doc:"The counter, or the prefix or the group of a sum." example:"api-1"`
	Of             string     `json:"of,omitempty" doc:"uniques if the points are how many unique values the hits had; absent if they are hits." example:"uniques"`
	Step           string     `json:"step" doc:"The time from one point to the next: the step asked for, rounded up to whole cells, or 1d, 1w, 1mo or 1y." example:"1m"`
	TZ             string     `json:"tz,omitempty" doc:"The time zone of the steps 1d, 1w, 1mo and 1y; absent with other steps." example:"Europe/Berlin"`
	AsOf           time.Time  `json:"as_of" doc:"Every hit stored before this moment is in the points. Later hits are still being counted, and so is the last point while its step reaches beyond this moment." example:"2026-11-21T10:00:00.2Z"`
	Complete       bool       `json:"complete" doc:"False if hits of the range are known to be missing, or may be: counting began, or hits were discarded unread, after it began; or it ends more than 5 seconds after as_of, because no worker has counted lately." example:"true"`
	CountingSince  time.Time  `json:"counting_since,omitzero" doc:"When counting of these streams began; absent if that is unknown. Hits from before it are counted only if they carried their own time." example:"2026-10-01T08:00:00Z"`
	CompleteFrom   int64      `json:"complete_from,omitempty" doc:"The beginning, in Unix milliseconds, of the first step from which on no hit is known to be missing, or the end of the last step if no such step exists. Points before it may lack hits. Absent if complete is true." example:"1795255080000"`
	UnfinishedFrom int64      `json:"unfinished_from,omitempty" doc:"The beginning, in Unix milliseconds, of the first step that as_of has not passed: from there on points are still being counted. Absent if all steps are finished." example:"1795255200000"`
	Points         [][2]int64 `json:"points" doc:"For every step, the moment at which it begins, in Unix milliseconds, and its hits; zeros included. The first is the step in which counting began, or an earlier one that holds hits. The last step ends with the range and may be shorter." example:"[[1795255080000,118],[1795255140000,121]]"`
	Bounds         [][2]int64 `json:"bounds,omitempty" doc:"For each point, the least and the most hits that its step can have had by as_of. Present only if a step begins or ends inside a cell, which steps of 1d, 1w, 1mo and 1y can do; without it every point is exact. Of uniques there are always some, and they hold with confidence." example:"[[112,121],[121,121]]"`
	Confidence     float64    `json:"confidence,omitempty" doc:"How often the truth lies within the bounds of a point, at least; absent if that is certain, as it is of hits." example:"0.95"`
}

// SeriesList has the hits of several counters or groups at the same moments.
type SeriesList struct {
	Step   string       `json:"step" doc:"The step of all of them." example:"1m"`
	AsOf   time.Time    `json:"as_of" doc:"Every hit stored before this moment is in the points." example:"2026-11-21T10:00:00.2Z"`
	Series []Series     `json:"series" doc:"One for each counter, in the order asked for; or for each group that has hits, the one with most hits in the range first. All have the same moments."`
	Others *OtherGroups `json:"others,omitempty" doc:"The sum of the groups that are not listed; absent if all are."`
}

// OtherGroups is the sum of the groups that are not listed.
type OtherGroups struct {
	Groups int        `json:"groups" doc:"How many groups these are." example:"4"`
	Points [][2]int64 `json:"points" doc:"As those of the series." example:"[[1795255080000,12],[1795255140000,9]]"`
	Bounds [][2]int64 `json:"bounds,omitempty" doc:"As those of the series." example:"[[11,13],[9,9]]"`
}

// SeriesLines is an answer about series: a line for each counter, for a sum, or for each group.
type SeriesLines struct {
	Keys  []string        // what the lines are called
	Found []window.Series // the lines: at least one; all have the same steps

	Uniques bool // they are not hits, but numbers of unique values

	groups bool // they are groups, also if there is one; without any, Found is a line of zeros
	listed int  // how many lines are counters or groups; the last line may be the others
	others int  // how many groups that line adds up
}

// JSON is one series, or a list if several counters or groups were asked for.
func (l *SeriesLines) JSON() any {
	begun := firstStep(l.Found)
	if !l.groups && l.listed == 1 {
		return l.seriesOf(l.Keys[0], l.Found[0], begun)
	}
	out := SeriesList{Step: stepText(l.Found[0]), AsOf: Time(l.Found[0].AsOf), Series: make([]Series, l.listed)}
	for i := range out.Series {
		out.Series[i] = l.seriesOf(l.Keys[i], l.Found[i], begun)
		if out.Series[i].AsOf.Before(out.AsOf) {
			out.AsOf = out.Series[i].AsOf
		}
	}
	if l.others > 0 {
		rest := l.seriesOf("", l.Found[l.listed], begun)
		out.Others = &OtherGroups{Groups: l.others, Points: rest.Points, Bounds: rest.Bounds}
	}
	return out
}

// seriesOf leaves out the first begun steps, in which no worker counted: their zeros would look like a time
// without hits.
func (l *SeriesLines) seriesOf(key string, f window.Series, begun int) Series {
	out := Series{
		Key: key, Step: stepText(f), AsOf: Time(f.AsOf), Complete: f.Complete && !f.Asked.Outruns(f.AsOf),
		CountingSince: Since(f.CountingSince), Points: make([][2]int64, 0, len(f.Counts)-begun),
	}
	if steps, ok := f.Steps.(calendar.Steps); ok {
		out.TZ = steps.Zone.String()
	}
	for j, n := range f.Counts[begun:] {
		out.Points = append(out.Points, [2]int64{f.Start(begun + j), n})
	}
	if f.Bounds != nil {
		out.Bounds = f.Bounds[begun:]
	}
	if l.Uniques {
		out.Of, out.Confidence = ofUniques, window.UniqueConfidence
	}
	if n := f.CompleteFrom(); !f.Complete {
		out.CompleteFrom = min(f.Start(max(n, begun)), f.Range.To)
	}
	if n := f.Finished(); n < len(f.Counts) {
		out.UnfinishedFrom = f.Start(max(n, begun))
	}
	return out
}

func stepText(f window.Series) string {
	if f.Steps != nil {
		return f.Steps.String()
	}
	return human.FormatDuration(f.Step)
}

// WithoutReadTime returns the answer without its moment. Of as_of, only the number of steps passed remains.
func (l *SeriesLines) WithoutReadTime() []window.Series {
	out := slices.Clone(l.Found)
	for i := range out {
		out[i].Now, out[i].AsOf, out[i].Steps = 0, int64(out[i].Finished()), nil
	}
	return out
}

func SeriesExample() Series {
	return Series{
		Key: "api-1", Step: "1m", AsOf: time.Date(2026, 11, 21, 10, 0, 0, 2e8, time.UTC), Complete: true,
		CountingSince:  SinceExample,
		UnfinishedFrom: 1795255200000, Points: [][2]int64{{1795255080000, 118}, {1795255140000, 121},
			{1795255200000, 1}},
	}
}

// CSV returns a table with a row per step and a column per line, then two columns per line for the bounds if
// any, and last whether no hit of the step is known to be missing. All series have the same steps. A field is
// empty if its step has no value yet or still goes on, so sums have only finished steps. Empty rows are left
// out.
func (l *SeriesLines) CSV() []byte {
	keys, series := l.Keys, l.Found
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	bounded := series[0].Bounds != nil
	row := []string{"time"}
	for _, key := range keys {
		row = append(row, columnName(key))
	}
	if bounded {
		for _, key := range keys {
			row = append(row, columnName(key)+" lower", columnName(key)+" upper")
		}
	}
	row = append(row, "complete")
	_ = w.Write(row) // a buffer takes everything
	begun, zone := firstStep(series), zoneOf(series[0])
	for i := begun; i < len(series[0].Counts); i++ {
		clear(row)
		row[0] = Time(series[0].Start(i)).In(zone).Format(time.RFC3339)
		counted, complete := false, true
		for j, f := range series {
			complete = complete && i >= f.CompleteFrom()
			if i >= f.Finished() {
				continue
			}
			row[1+j], counted = strconv.FormatInt(f.Counts[i], 10), true
			if bounded {
				at := 1 + len(keys) + 2*j
				row[at], row[at+1] = strconv.FormatInt(f.Bounds[i][0], 10), strconv.FormatInt(f.Bounds[i][1], 10)
			}
		}
		row[len(row)-1] = strconv.FormatBool(complete)
		if counted {
			_ = w.Write(row)
		}
	}
	w.Flush()
	return out.Bytes()
}

func firstStep(found []window.Series) int {
	begun := len(found[0].Counts)
	for _, f := range found {
		begun = min(begun, f.Begun())
	}
	return begun
}

func zoneOf(f window.Series) *time.Location {
	if steps, ok := f.Steps.(calendar.Steps); ok {
		return steps.Zone
	}
	return time.UTC
}

// columnName changes a counter's name so that no spreadsheet takes it for a formula. Names can come from
// strangers, such as paths of an access log, and a formula can send neighbouring cells elsewhere (OWASP ASVS
// 5.0, 1.2.10). Nothing is lost: the client gave the names, in this order. JSON has them unchanged.
func columnName(key string) string {
	if key == window.AllHits {
		return allKey
	}
	if strings.ContainsRune("=+-@\uff1d\uff0b\uff0d\uff20", []rune(key)[0]) { // as wide characters, too
		return "'" + key
	}
	return key
}

// othersKey is what a table calls the sum of the groups that it does not list, allKey that of all hits.
const othersKey, allKey = "others", "all"

// Time returns a moment in the form that answers have.
func Time(milli int64) time.Time { return time.UnixMilli(milli).UTC() }

// Since is when counting began, or the zero time, which answers omit, if that is unknown.
func Since(milli int64) time.Time {
	if milli == 0 {
		return time.Time{}
	}
	return Time(milli)
}

var SinceExample = time.Date(2026, 10, 1, 8, 0, 0, 0, time.UTC)

// SecondsSince is never negative, because clocks are estimates.
func SecondsSince(then, now int64) float64 { return float64(max(0, now-then)) / 1000 }
