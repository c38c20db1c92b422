package answer

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/internal/window/calendar"
)

// Input is a request's counters and time, not yet checked. Each resource uses some of the fields.
type Input struct {
	Part                   string // InQuery or InBody
	KeyParam, WindowsParam string // what the request calls keys and windows
	Keys, Windows          []string
	at, from, to           api.Moment
	step                   string
	tz, prefix             string
	all                    bool // prefix is given, and empty
	group, limit           api.Number
	of                     string // what a series is of
	hasCalendars           bool   // the resource has calendar windows, and tz
}

const (
	// maxWindows bounds the windows of a request, and with QUERY_MAX_KEYS its questions.
	maxWindows = 8
	// maxGroup bounds how many parts of their names groups have in common.
	maxGroup = 16
	// defaultSeries is the length of a series whose request has no beginning.
	defaultSeries = time.Hour
)

const defaultTop, maxTop = 20, 1000

const defaultCounters, maxCounters = 100, 1000

type choice string

const choiceHint = "1 or 0, true or false"

func (choice) Hint() string { return choiceHint }

// UnmarshalJSON keeps the value as written, so that only parse refuses one.
func (c *choice) UnmarshalJSON(data []byte) error {
	*c = choice(data)
	return nil
}

// Schema describes the text. A query string may also have 1 and 0.
func (choice) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Type: huma.TypeString} }

func (c choice) parse(param string) (bool, error) {
	switch c {
	case "1", "true", `"1"`, `"true"`:
		return true, nil
	case "", "0", "false", "null", `"0"`, `"false"`:
		return false, nil
	}
	return false, web.BadInput(param, "%s: must be %s", web.Excerpt(string(c)), choiceHint)
}

type period struct {
	Window string // as it is written in the request; empty for a range
	Span   window.Span
}

// totalPeriods checks an input about totals and returns the periods for each of its counters.
func (in *Input) totalPeriods(maxKeys int) ([]period, error) {
	if in.prefix != "" || in.all {
		if err := in.checkSum(); err != nil {
			return nil, err
		}
	} else if err := in.CheckKeys(maxKeys); err != nil {
		return nil, err
	}
	switch {
	case in.group != "" && in.prefix == "" && !in.all:
		return nil, web.BadInput("group", "only with prefix: only sums over names have groups")
	case len(in.Windows) > 0:
		return in.Periods()
	case in.tz != "" && !in.hasDate():
		return nil, web.BadInput("tz", "only for dates, and the windows %s", calendar.WindowHint)
	case in.from != "":
		return in.rangePeriod()
	case in.to != "":
		return nil, web.BadInput("from", "missing although to is given: a range is from=…&to=…, and to is now "+
			"by default")
	}
	return nil, web.BadInput(in.WindowsParam, "missing: ask about one or more windows, such as 24h, or about a range "+
		"with from and to")
}

// seriesQuestion checks an input about series, and returns the question for one of the counters.
func (in *Input) seriesQuestion(maxKeys int) (out window.SeriesQuestion, err error) {
	switch {
	case in.limit != "" && in.group == "":
		err = web.BadInput("limit", "only with group: it bounds how many groups are listed")
	case in.isSum():
		err = in.checkSum()
	default:
		err = in.CheckKeys(maxKeys)
	}
	if err != nil {
		return out, err
	}
	span, err := in.seriesSpan()
	if err != nil {
		return out, err
	}
	out = window.SeriesQuestion{Span: span, Reach: window.WhileHeldIfFitting} // of steps of a cell
	return out, in.readStep(&out)
}

// seriesSpan returns the span of the window, or from–to.
func (in *Input) seriesSpan() (window.Span, error) {
	if len(in.Windows) == 0 {
		return in.rangeSpan(defaultSeries)
	}
	if in.to != "" {
		return window.Span{}, web.BadInput("to", "not together with window: the window of a series ends now")
	}
	windows := Input{WindowsParam: in.WindowsParam, Windows: in.Windows, from: in.from, hasCalendars: true}
	if in.hasCalendarWindow() {
		windows.tz = in.tz
	}
	periods, err := windows.Periods()
	if err != nil {
		return window.Span{}, err
	}
	return periods[0].Span, nil
}

// seriesPeriod names the window in errors about a series.
func (in *Input) seriesPeriod() (out period) {
	if len(in.Windows) > 0 {
		out.Window = in.Windows[0]
	}
	return out
}

func (in *Input) hasCalendarWindow() bool { return slices.ContainsFunc(in.Windows, calendar.IsWindow) }

// readStep reads the zone first, because 1d is a day of 23 to 25 hours in a zone and a step of 24 hours
// without one.
func (in *Input) readStep(q *window.SeriesQuestion) error {
	zone, err := in.zone()
	if err != nil {
		return err
	}
	if steps, ok := calendar.ParseSteps(in.step, zone); ok {
		q.Steps = steps
		return nil
	}
	if in.tz != "" && !in.hasCalendarWindow() && !in.hasDate() {
		return web.BadInput("tz", "only for dates, the steps %s, and the windows %s: all others are the same in "+
			"every zone", calendar.StepHint, calendar.WindowHint)
	}
	if in.step == "" {
		return nil
	}
	q.Step, err = api.ParseDuration("step", in.step)
	web.AddHint(err, calendar.StepHint+", the days, weeks, months or years of tz")
	return err
}

func (in *Input) zone() (*time.Location, error) {
	zone, err := calendar.ParseZone(in.tz)
	if err != nil {
		return nil, web.BadInput("tz", "%v", err)
	}
	return zone, nil
}

func (in *Input) CheckKeys(most int) error {
	if len(in.Keys) == 0 {
		return web.BadInput(in.KeyParam, "missing: name at least one counter")
	}
	if len(in.Keys) > most {
		return web.TooMuchInput(in.KeyParam, "%d counters in one request: at most %d are allowed (QUERY_MAX_KEYS)",
			len(in.Keys), most)
	}
	for _, key := range in.Keys {
		if err := api.CheckKey(in.KeyParam, key); err != nil {
			return err
		}
	}
	return nil
}

func (in *Input) Periods() ([]period, error) {
	if in.from != "" {
		return nil, web.BadInput("from", "not together with %s: ask about windows or about a range", in.WindowsParam)
	}
	if in.to != "" {
		return nil, web.BadInput("to", "not together with %s: the end of a window is at", in.WindowsParam)
	}
	if len(in.Windows) > maxWindows {
		return nil, web.BadInput(in.WindowsParam, "%d windows in one request: at most %d are allowed", len(in.Windows),
			maxWindows)
	}
	to, err := in.parseEnd("at", in.at)
	if err != nil {
		return nil, err
	}
	zone, err := in.zone()
	if err != nil {
		return nil, err
	}
	periods, anyCalendar := make([]period, len(in.Windows)), false
	for i, text := range in.Windows {
		if in.hasCalendars && calendar.IsWindow(text) {
			anyCalendar = true
			periods[i] = period{text, window.Span{To: to, Calendar: calendar.Window{Name: text, Zone: zone}}}
			continue
		}
		length, err := api.ParseDuration(in.WindowsParam, text)
		if err != nil {
			if in.hasCalendars {
				web.AddHint(err, calendar.WindowHint)
			}
			return nil, err
		}
		periods[i] = period{text, window.Span{Length: length, To: to}}
	}
	if in.tz != "" && !anyCalendar && !in.hasDate() {
		return nil, web.BadInput("tz", "only for dates, and the windows %s: all windows of this request are durations",
			calendar.WindowHint)
	}
	return periods, nil
}

func (in *Input) rangePeriod() ([]period, error) {
	if in.at != "" {
		return nil, web.BadInput("at", "not together with from: the end of a range is to")
	}
	span, err := in.rangeSpan(0)
	return []period{{Span: span}}, err
}

// rangeSpan returns the span from–to. Without from, it has the default length; without to, it ends now.
func (in *Input) rangeSpan(byDefault time.Duration) (window.Span, error) {
	to, err := in.parseEnd("to", in.to)
	if err != nil || in.from == "" {
		return window.Span{Length: byDefault, To: to}, err
	}
	from, err := in.milli("from", in.from)
	if err != nil {
		return window.Span{}, err
	}
	if areAbsolute(from, to) && from >= to { // of other ranges, only the answer can tell
		return window.Span{}, web.BadInput("from", "%v", &window.EmptyError{Range: window.Range{From: from, To: to}})
	}
	return window.Between(from, to), nil
}

// areAbsolute reports whether both moments are absolute. Relative ones become so when they are answered.
func areAbsolute(from, to int64) bool { return from >= 0 && to >= 0 }

// explain returns the problem of a read error: if the client can correct its question, one that names the
// parameter at fault. periods are those of each of the question's counters, in turn.
func (in *Input) explain(err error, periods ...period) error {
	bad := ClientError(err)
	if bad == nil {
		return err
	}
	p := periods[bad.Index%len(periods)]
	var ahead *window.AheadError
	param := "from"
	switch {
	case errors.Is(bad, window.ErrNoUniques):
		return web.NewProblem(http.StatusBadRequest, bad.Error())
	case errors.As(bad, &ahead) && p.Window == "":
		param = "to"
	case errors.As(bad, &ahead):
		param = "at"
	case p.Window != "":
		return web.BadInput(in.WindowsParam, "%s: %v", p.Window, bad).Problem(in.Part)
	}
	return web.BadInput(param, "%v", bad).Problem(in.Part)
}

func (in *Input) parseEnd(param string, m api.Moment) (int64, error) {
	if m == "" {
		return window.Now, nil
	}
	return in.milli(param, m)
}

// milli parses a moment. A date begins at midnight in tz.
func (in *Input) milli(param string, m api.Moment) (int64, error) {
	zone, err := in.zone()
	if err != nil {
		return 0, err
	}
	return m.Milli(param, func(date time.Time) int64 { return calendar.FirstMoment(date, zone) })
}

// hasDate reports whether a moment is a date, and so depends on tz.
func (in *Input) hasDate() bool { return in.at.IsDate() || in.from.IsDate() || in.to.IsDate() }

func (in *Input) checkSum() error {
	if len(in.Keys) > 0 {
		return web.BadInput("prefix", "not together with %s: ask about counters or about a sum", in.KeyParam)
	}
	if in.prefix != "" {
		if err := api.CheckKey("prefix", in.prefix); err != nil {
			return err
		}
	}
	_, err := in.group.Parse("group", 0, 1, maxGroup)
	return err
}

func (in *Input) isSum() bool { return in.prefix != "" || in.group != "" || in.all }

// withPrefix sets a body's prefix, which is nil if it has none.
func (in *Input) withPrefix(prefix *string) *Input {
	if prefix != nil {
		in.prefix, in.all = *prefix, *prefix == ""
	}
	return in
}

// anyCounter returns a name that the caller may ask about, in place of a sum's counters: for the ranges, and
// for what may be wrong with the periods.
func (in *Input) anyCounter(ctx context.Context) []string {
	if in.prefix != "" {
		return []string{in.prefix}
	}
	return slices.Concat(access.From(ctx).Prefixes(), []string{othersKey})[:1]
}

// counters returns the counters of a question about no sum over names.
func (in *Input) counters() []string {
	if in.all {
		return []string{window.AllHits}
	}
	return in.Keys
}

// questionsOf asks about each counter in all periods, one counter after the other.
func questionsOf(counters []string, periods []period) []window.Question {
	out := make([]window.Question, 0, len(counters)*len(periods))
	for _, counter := range counters {
		for _, p := range periods {
			out = append(out, window.Question{Counter: counter, Span: p.Span})
		}
	}
	return out
}

const ofHits, ofUniques, ofHint = "hits", "uniques", "hits or uniques"

// ofUniques reports whether a question about series is about uniques. They have no sums over counters: a
// visitor of two counters is one of each, and one of both.
func (in *Input) ofUniques() (bool, error) {
	switch in.of {
	case "", ofHits:
		return false, nil
	case ofUniques:
		if in.isSum() {
			return false, web.BadInput("of", "uniques of several counters cannot be added up, because the same one "+
				"can be in many of them: name counters with %s, or count all of them under one name besides",
				in.KeyParam)
		}
		return true, nil
	}
	return false, web.BadInput("of", "%s: must be %s", web.Excerpt(in.of), ofHint)
}

// depth returns how many parts of their names groups have in common, which checkSum has checked; 0: no
// groups.
func (in *Input) depth() int {
	n, _ := in.group.Parse("group", 0, 1, maxGroup)
	return int(n)
}
