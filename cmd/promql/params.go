package main

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// The forms of Prometheus's own API: times are Unix seconds or RFC 3339, durations are seconds
// or Prometheus's 1h30m.

// maxSeconds is the end of the year 9999: further moments do not fit the milliseconds of the engine.
const maxSeconds = 253402300799

// timeParam reads a moment. byDefault is the one for an absent parameter; nil means that it must be there.
func timeParam(r *http.Request, name string, byDefault *time.Time) (time.Time, error) {
	text := r.FormValue(name)
	if text == "" && byDefault != nil {
		return *byDefault, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err == nil && math.Abs(seconds) <= maxSeconds {
		return time.UnixMilli(int64(math.Round(seconds * 1000))).UTC(), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err == nil {
		return at, nil
	}
	return time.Time{}, badData("invalid parameter %q: %.64q is not a time: Unix seconds or RFC 3339 are allowed", name, text)
}

// durationParam reads a duration above 0. It returns 0 if the parameter is absent and need not be there.
func durationParam(r *http.Request, name string, needed bool) (time.Duration, error) {
	text := r.FormValue(name)
	if text == "" && !needed {
		return 0, nil
	}
	var out time.Duration
	seconds, err := strconv.ParseFloat(text, 64)
	if err == nil && seconds*float64(time.Second) < math.MaxInt64 {
		out = time.Duration(seconds * float64(time.Second))
	}
	parsed, err := model.ParseDuration(text)
	if err == nil {
		out = time.Duration(parsed)
	}
	if out < time.Millisecond {
		return 0, badData("invalid parameter %q: %.64q is not a duration above 0: seconds or a duration such as 15s or 1h30m are allowed", name, text)
	}
	return out, nil
}

// limitParam reads how many results are wanted; 0 means all.
func limitParam(r *http.Request) (int, error) {
	text := r.FormValue("limit")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, badData("invalid parameter %q: %.64q: a whole number from 0 on is allowed", "limit", text)
	}
	return n, nil
}

// selectorsParam reads match[]. Like Prometheus, it refuses a selector that every series of
// every metric would match.
func (s *service) selectorsParam(r *http.Request) ([][]*labels.Matcher, error) {
	if err := s.checkText("match[]", r.Form["match[]"]...); err != nil {
		return nil, err
	}
	sets, err := s.parser.ParseMetricSelectors(r.Form["match[]"])
	if err != nil {
		return nil, badData("invalid parameter %q: %v", "match[]", err)
	}
	for _, set := range sets {
		if matchesAll(set, "") {
			return nil, badData("invalid parameter %q: a selector needs a matcher that does not match everything, such as %s", "match[]", metricName)
		}
	}
	return sets, nil
}
