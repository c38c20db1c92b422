package query

import (
	"fmt"
	"net/http"
	"time"
	"unicode"
	"unicode/utf8"

	"tallyroll/internal/window"
)

const (
	// maxWindows is how many windows one request may ask about. With
	// QUERY_MAX_KEYS it bounds the questions of a request.
	maxWindows = 8
	// maxKeyBytes is the longest counter that a hit can name.
	maxKeyBytes = 512
	// maxDurationText is longer than any duration of ten years is written.
	maxDurationText = 16
)

// ask is what a request for totals says, before it is checked.
type ask struct {
	in          string // query or body
	key, window string // what the request calls these parameters
	keys        []string
	windows     []string
	at          moment
	from, to    moment
}

// span is a span of time to ask about, and the window that it was asked as.
type span struct {
	window string // empty for a range
	window.Span
}

// spans checks an ask and turns it into the spans that each of its counters is
// asked about.
func (a *ask) spans(maxKeys int) ([]span, error) {
	if err := a.checkKeys(maxKeys); err != nil {
		return nil, err
	}
	switch {
	case len(a.windows) > 0:
		return a.windowSpans()
	case a.from != "":
		return a.rangeSpan()
	case a.to != "":
		return nil, badInput("from", "it is missing beside to: a range is from=…&to=…, where to is now by default")
	}
	return nil, badInput(a.window, "it is missing: ask about one or more windows, such as 24h, or about a range with from and to")
}

func (a *ask) checkKeys(most int) error {
	if len(a.keys) == 0 {
		return badInput(a.key, "it is missing: name at least one counter")
	}
	if len(a.keys) > most {
		return &inputError{http.StatusRequestEntityTooLarge, a.key, fmt.Sprintf("%d counters in one request: at most %d are allowed (QUERY_MAX_KEYS)", len(a.keys), most)}
	}
	for _, key := range a.keys {
		if err := checkKey(a.key, key); err != nil {
			return err
		}
	}
	return nil
}

// checkKey refuses what no hit can be counted under.
func checkKey(param, key string) error {
	var wrong string
	switch {
	case key == "":
		wrong = "a counter without a name"
	case len(key) > maxKeyBytes:
		wrong = fmt.Sprintf("a counter's name of %d bytes", len(key))
	case !utf8.ValidString(key):
		wrong = excerpt(key) + " is not UTF-8"
	default:
		for _, r := range key {
			if unicode.IsControl(r) {
				wrong = excerpt(key) + " has a control character"
				break
			}
		}
	}
	if wrong == "" {
		return nil
	}
	return badInput(param, "%s: allowed are 1 to %d bytes of UTF-8 without control characters", wrong, maxKeyBytes)
}

func (a *ask) windowSpans() ([]span, error) {
	if a.from != "" {
		return nil, badInput("from", "not together with %s: ask about windows or about a range", a.window)
	}
	if a.to != "" {
		return nil, badInput("to", "not together with %s: the end of a window is at", a.window)
	}
	if len(a.windows) > maxWindows {
		return nil, badInput(a.window, "%d windows in one request: at most %d are allowed", len(a.windows), maxWindows)
	}
	at, err := end("at", a.at)
	if err != nil {
		return nil, err
	}
	spans := make([]span, len(a.windows))
	for i, text := range a.windows {
		d, err := parseDuration(a.window, text)
		if err != nil {
			return nil, err
		}
		spans[i] = span{text, window.Span{Length: d, To: at}}
	}
	return spans, nil
}

func (a *ask) rangeSpan() ([]span, error) {
	if a.at != "" {
		return nil, badInput("at", "not together with from: the end of a range is to")
	}
	asked, err := a.asked(0)
	return []span{{"", asked}}, err
}

// asked is the span from–to. Where from is not given it begins the default length
// before to, and to is now where it is not given.
func (a *ask) asked(length time.Duration) (window.Span, error) {
	to, err := end("to", a.to)
	if err != nil || a.from == "" {
		return window.Span{Length: length, To: to}, err
	}
	from, err := a.from.milli("from")
	if err != nil {
		return window.Span{}, err
	}
	if from >= to { // if it ends now, only the answer can tell
		return window.Span{}, badInput("from", "%v", &window.EmptyError{Range: window.Range{From: from, To: to}})
	}
	return window.Between(from, to), nil
}

// end reads the moment that a question ends at, now where it is not given.
func end(param string, m moment) (int64, error) {
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

// questions asks about every counter in every span, in that order.
func questions(keys []string, spans []span) []window.Question {
	out := make([]window.Question, 0, len(keys)*len(spans))
	for _, key := range keys {
		for _, s := range spans {
			out = append(out, window.Question{Counter: key, Span: s.Span})
		}
	}
	return out
}
