package query

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"tallyroll/internal/hit"
	"tallyroll/internal/window"
)

const (
	// maxWindows is how many windows one request may ask about. With
	// QUERY_MAX_KEYS it bounds the questions of a request.
	maxWindows = 8
	// maxDurationText is longer than the text of any duration up to ten years.
	maxDurationText = 16
	// defaultSeries is how far back a series goes if the request names no beginning.
	defaultSeries = time.Hour
)

// The parts of a request that can hold parameters, as problems name them.
const (
	inQuery = "query"
	inBody  = "body"
)

// input is what a request says about counters and time, before it is checked.
// Each resource uses some of the fields.
type input struct {
	part                   string // inQuery or inBody
	keyParam, windowsParam string // what the request calls keys and windows
	keys, windows          []string
	at, from, to           moment
	step                   string
	tz, prefix             string
	explain                explainText
	group                  numberText
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
		return nil, badInput("group", "it is missing a prefix: only sums over names have groups")
	case len(in.windows) > 0:
		return in.windowPeriods()
	case in.tz != "":
		return nil, badInput("tz", "it is only for the windows %s", calendarHint)
	case in.from != "":
		return in.rangePeriod()
	case in.to != "":
		return nil, badInput("from", "it is missing although to is given: a range is from=…&to=…, and to is now by default")
	}
	return nil, badInput(in.windowsParam, "it is missing: ask about one or more windows, such as 24h, or about a range with from and to")
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
	question := window.SeriesQuestion{Span: span, Reach: window.WhileHeldIfFitting} // of steps of a cell
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
		return badInput("tz", "it is only for the steps %s: all other steps are the same in every zone", stepHint)
	}
	if in.step == "" {
		return nil
	}
	q.Step, err = parseDuration("step", in.step)
	var bad *inputError
	if errors.As(err, &bad) {
		bad.message += "; or " + stepHint + ", the days, weeks or months of tz"
	}
	return err
}

func (in *input) checkKeys(most int) error {
	if len(in.keys) == 0 {
		return badInput(in.keyParam, "it is missing: name at least one counter")
	}
	if len(in.keys) > most {
		return &inputError{http.StatusRequestEntityTooLarge, in.keyParam, fmt.Sprintf("%d counters in one request: at most %d are allowed (QUERY_MAX_KEYS)", len(in.keys), most)}
	}
	for _, key := range in.keys {
		if err := checkKey(in.keyParam, key); err != nil {
			return err
		}
	}
	return nil
}

// checkKey refuses a name that no hit can have for its counter.
func checkKey(param, key string) error {
	return checkName(param, key, "a counter without a name", "a counter's name")
}

// checkName refuses what hit.CheckName refuses. empty is what is wrong with an empty name, and what is
// how a name is called.
func checkName(param, name, empty, what string) error {
	var wrong string
	switch err := hit.CheckName([]byte(name)); {
	case err == nil:
		return nil
	case name == "":
		wrong = empty
	case errors.Is(err, hit.ErrNameLength):
		wrong = fmt.Sprintf("%s of %d bytes", what, len(name))
	case errors.Is(err, hit.ErrNameUTF8):
		wrong = excerpt(name) + " is not UTF-8"
	default:
		wrong = excerpt(name) + " has a control character"
	}
	return badInput(param, "%s: allowed are 1 to %d bytes of UTF-8 without control characters", wrong, hit.MaxName)
}

func (in *input) windowPeriods() ([]period, error) {
	if in.from != "" {
		return nil, badInput("from", "not together with %s: ask about windows or about a range", in.windowsParam)
	}
	if in.to != "" {
		return nil, badInput("to", "not together with %s: the end of a window is at", in.windowsParam)
	}
	if len(in.windows) > maxWindows {
		return nil, badInput(in.windowsParam, "%d windows in one request: at most %d are allowed", len(in.windows), maxWindows)
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
		length, err := parseDuration(in.windowsParam, text)
		var bad *inputError
		if in.calendars && errors.As(err, &bad) {
			bad.message += "; or " + calendarHint
		}
		if err != nil {
			return nil, err
		}
		periods[i] = period{text, window.Span{Length: length, To: to}}
	}
	if in.tz != "" && !anyCalendar {
		return nil, badInput("tz", "it is only for the windows %s: all windows of this request are durations", calendarHint)
	}
	return periods, nil
}

func (in *input) rangePeriod() ([]period, error) {
	if in.at != "" {
		return nil, badInput("at", "not together with from: the end of a range is to")
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
	from, err := in.from.milli("from")
	if err != nil {
		return window.Span{}, err
	}
	if from >= to { // if it ends now, only the answer can tell
		return window.Span{}, badInput("from", "%v", &window.EmptyError{Range: window.Range{From: from, To: to}})
	}
	return window.Between(from, to), nil
}

// unanswerable is the problem of a question that the reader has refused: it names the
// parameter that asked it.
func (in *input) unanswerable(p period, err *window.QuestionError) *problem {
	var ahead *window.AheadError
	switch {
	case errors.As(err, &ahead) && p.window == "":
		return badInput("to", "%v", err).problem(in.part)
	case errors.As(err, &ahead):
		return badInput("at", "%v", err).problem(in.part)
	case p.window == "":
		return badInput("from", "%v", err).problem(in.part)
	}
	return badInput(in.windowsParam, "%s: %v", p.window, err).problem(in.part)
}

// parseEnd is the moment that a question ends at: now if the request names none.
func parseEnd(param string, m moment) (int64, error) {
	if m == "" {
		return window.Now, nil
	}
	return m.milli(param)
}

func parseDuration(param, text string) (time.Duration, error) {
	if len(text) > maxDurationText {
		text = text[:maxDurationText] + "…" // no duration: the error is to say so, in a line
	}
	d, err := window.ParseDuration(text)
	if err != nil {
		return 0, badInput(param, "%v", err)
	}
	return d, nil
}
