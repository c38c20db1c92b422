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
	// clockSlack is how far an asker's clock may be ahead of ours: such a moment is taken to be now.
	clockSlack = time.Minute
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

// span is a range of time to ask about, and the window that it was asked as.
type span struct {
	window string // empty for a range
	window.Range
}

// spans checks an ask and turns it into the ranges that each of its counters is
// asked about. now is in Unix milliseconds.
func (a *ask) spans(now int64, maxKeys int) ([]span, error) {
	if err := a.checkKeys(maxKeys); err != nil {
		return nil, err
	}
	switch {
	case len(a.windows) > 0:
		return a.windowSpans(now)
	case a.from != "":
		return a.rangeSpan(now)
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

func (a *ask) windowSpans(now int64) ([]span, error) {
	if a.from != "" {
		return nil, badInput("from", "not together with %s: ask about windows or about a range", a.window)
	}
	if a.to != "" {
		return nil, badInput("to", "not together with %s: the end of a window is at", a.window)
	}
	if len(a.windows) > maxWindows {
		return nil, badInput(a.window, "%d windows in one request: at most %d are allowed", len(a.windows), maxWindows)
	}
	at := now
	var err error
	if a.at != "" {
		if at, err = end("at", a.at, now); err != nil {
			return nil, err
		}
	}
	spans := make([]span, len(a.windows))
	for i, text := range a.windows {
		d, err := parseDuration(a.window, text)
		if err != nil {
			return nil, err
		}
		spans[i] = span{text, window.Range{From: at - d.Milliseconds(), To: at}}
	}
	return spans, nil
}

func (a *ask) rangeSpan(now int64) ([]span, error) {
	if a.at != "" {
		return nil, badInput("at", "not together with from: the end of a range is to")
	}
	r, err := a.asked(now, 0)
	return []span{{"", r}}, err
}

// asked is the range from–to. Where from is not given it lies the default length
// before to, and to is now where it is not given.
func (a *ask) asked(now int64, length time.Duration) (window.Range, error) {
	r := window.Range{To: now}
	var err error
	if a.to != "" {
		if r.To, err = end("to", a.to, now); err != nil {
			return window.Range{}, err
		}
	}
	r.From = r.To - length.Milliseconds()
	if a.from != "" {
		if r.From, err = a.from.milli("from"); err != nil {
			return window.Range{}, err
		}
	}
	if r.From >= r.To {
		return window.Range{}, badInput("from", "%s is not before to, %s: allowed is an earlier moment", timeOf(r.From).Format(time.RFC3339Nano), timeOf(r.To).Format(time.RFC3339Nano))
	}
	return r, nil
}

// end reads the moment that a question ends at: at most now.
func end(param string, m moment, now int64) (int64, error) {
	at, err := m.milli(param)
	if err != nil {
		return 0, err
	}
	if ahead := at - now; ahead > clockSlack.Milliseconds() {
		return 0, badInput(param, "%s is later than now, %s: allowed is a moment up to now", timeOf(at).Format(time.RFC3339Nano), timeOf(now).Format(time.RFC3339Nano))
	}
	return min(at, now), nil
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
			out = append(out, window.Question{Counter: key, Range: s.Range})
		}
	}
	return out
}
