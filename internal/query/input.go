package query

import (
	"errors"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"time"

	"tallyroll/internal/window"
)

const (
	// maxWindows is how many windows one request may ask about. With
	// QUERY_MAX_KEYS it bounds the questions of a request.
	maxWindows = 8
	// defaultSeries is how far back a series goes if the request names no beginning.
	defaultSeries = time.Hour
)

// input is what a request says about counters and time, before it is checked.
// Each resource uses some of the fields.
type input struct {
	part                   string // InQuery or InBody
	keyParam, windowsParam string // what the request calls keys and windows
	keys, windows          []string
	at, from, to           api.Moment
	step                   string
	tz, prefix             string
	explain                explainText
	group                  api.Number
	calendars              bool // the resource knows the windows of a calendar, and tz
}

// period is a time to ask about.
type period struct {
	window string // as it is written in the request; empty for a range
	span   window.Span
}

// totalPeriods checks an input about totals and turns it into the periods for each of
// its counters.
func (in *input) totalPeriods(maxKeys int) ([]period, error) {
	if in.prefix != "" {
		if err := in.checkSum(); err != nil {
			return nil, err
		}
	} else if err := in.checkKeys(maxKeys); err != nil {
		return nil, err
	}
	_, err := in.explain.parse()
	switch {
	case err != nil:
		return nil, err
	case in.group != "" && in.prefix == "":
		return nil, web.BadInput("group", "it is missing a prefix: only sums over names have groups")
	case len(in.windows) > 0:
		return in.windowPeriods()
	case in.tz != "":
		return nil, web.BadInput("tz", "it is only for the windows %s", calendarHint)
	case in.from != "":
		return in.rangePeriod()
	case in.to != "":
		return nil, web.BadInput("from", "it is missing although to is given: a range is from=…&to=…, and to is now by default")
	}
	return nil, web.BadInput(in.windowsParam, "it is missing: ask about one or more windows, such as 24h, or about a range with from and to")
}

// seriesQuestions checks an input about series.
func (in *input) seriesQuestions(maxKeys int) ([]window.SeriesQuestion, error) {
	if err := in.checkKeys(maxKeys); err != nil {
		return nil, err
	}
	span, err := in.rangeSpan(defaultSeries)
	if err != nil {
		return nil, err
	}
	question := window.SeriesQuestion{Span: span, Held: true, Fit: true} // of steps of a cell
	if err := in.readStep(&question); err != nil {
		return nil, err
	}
	out := make([]window.SeriesQuestion, len(in.keys))
	for i, key := range in.keys {
		out[i] = question
		out[i].Counter = key
	}
	return out, nil
}

// readStep sets the steps of a series.
func (in *input) readStep(q *window.SeriesQuestion) error {
	zone, err := parseZone(in.tz)
	if err != nil {
		return err
	}
	if steps, ok := parseSteps(in.step, zone); ok {
		q.Steps = steps
		return nil
	}
	if in.tz != "" {
		return web.BadInput("tz", "it is only for the steps %s: all other steps are the same in every zone", stepHint)
	}
	if in.step == "" {
		return nil
	}
	q.Step, err = api.ParseDuration("step", in.step)
	web.AddHint(err, stepHint+", the days, weeks or months of tz")
	return err
}

func (in *input) checkKeys(most int) error {
	if len(in.keys) == 0 {
		return web.BadInput(in.keyParam, "it is missing: name at least one counter")
	}
	if len(in.keys) > most {
		return web.TooMuchInput(in.keyParam, "%d counters in one request: at most %d are allowed (QUERY_MAX_KEYS)", len(in.keys), most)
	}
	for _, key := range in.keys {
		if err := api.CheckKey(in.keyParam, key); err != nil {
			return err
		}
	}
	return nil
}

func (in *input) windowPeriods() ([]period, error) {
	if in.from != "" {
		return nil, web.BadInput("from", "not together with %s: ask about windows or about a range", in.windowsParam)
	}
	if in.to != "" {
		return nil, web.BadInput("to", "not together with %s: the end of a window is at", in.windowsParam)
	}
	if len(in.windows) > maxWindows {
		return nil, web.BadInput(in.windowsParam, "%d windows in one request: at most %d are allowed", len(in.windows), maxWindows)
	}
	to, err := parseEnd("at", in.at)
	if err != nil {
		return nil, err
	}
	zone, err := parseZone(in.tz)
	if err != nil {
		return nil, err
	}
	periods, anyCalendar := make([]period, len(in.windows)), false
	for i, text := range in.windows {
		if in.calendars && isCalendar(text) {
			periods[i], anyCalendar = period{text, window.Span{To: to, Calendar: calendar{text, zone}}}, true
			continue
		}
		length, err := api.ParseDuration(in.windowsParam, text)
		if err != nil {
			if in.calendars {
				web.AddHint(err, calendarHint)
			}
			return nil, err
		}
		periods[i] = period{text, window.Span{Length: length, To: to}}
	}
	if in.tz != "" && !anyCalendar {
		return nil, web.BadInput("tz", "it is only for the windows %s: all windows of this request are durations", calendarHint)
	}
	return periods, nil
}

func (in *input) rangePeriod() ([]period, error) {
	if in.at != "" {
		return nil, web.BadInput("at", "not together with from: the end of a range is to")
	}
	span, err := in.rangeSpan(0)
	return []period{{span: span}}, err
}

// rangeSpan returns the span from–to. Without from, it begins the default length before
// to. Without to, it ends now.
func (in *input) rangeSpan(byDefault time.Duration) (window.Span, error) {
	to, err := parseEnd("to", in.to)
	if err != nil || in.from == "" {
		return window.Span{Length: byDefault, To: to}, err
	}
	from, err := in.from.Milli("from")
	if err != nil {
		return window.Span{}, err
	}
	if from >= to { // if it ends now, only the answer can tell
		return window.Span{}, web.BadInput("from", "%v", &window.EmptyError{Range: window.Range{From: from, To: to}})
	}
	return window.Between(from, to), nil
}

// unanswerable is the problem of a question that the reader has refused: it names the
// parameter that asked it.
func (in *input) unanswerable(p period, err *window.QuestionError) *web.Problem {
	var ahead *window.AheadError
	switch {
	case errors.As(err, &ahead) && p.window == "":
		return web.BadInput("to", "%v", err).In(in.part)
	case errors.As(err, &ahead):
		return web.BadInput("at", "%v", err).In(in.part)
	case p.window == "":
		return web.BadInput("from", "%v", err).In(in.part)
	}
	return web.BadInput(in.windowsParam, "%s: %v", p.window, err).In(in.part)
}

// parseEnd is the moment that a question ends at: now if the request names none.
func parseEnd(param string, m api.Moment) (int64, error) {
	if m == "" {
		return window.Now, nil
	}
	return m.Milli(param)
}
