package answer

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

// ProbeParams is what GET /probe takes: one of key, top, prefix and all.
type ProbeParams struct {
	Keys    []string   `query:"key,explode" doc:"A counter: 1 to 512 bytes of UTF-8 without control characters. May repeat; a comma is part of the name." example:"[\"api-1\"]"`
	Windows []string   `query:"window,explode" required:"true" doc:"How far to look back: a whole number and a unit (s, m, h, d, w, y). May repeat, at most 8 times." example:"[\"1h\"]"`
	Top     api.Number `query:"top" hint:"a whole number from 1 to 1000" doc:"In place of key: this many counters with most hits, for each window its own. At most 1000." example:"20"`
	Prefix  string     `query:"prefix" hint:"name" doc:"In place of key: all counters whose names begin like this." example:"shop."`
	All     choice     `query:"all" doc:"In place of key: the sum of all hits, as tallyroll_all_window_hits without a key. 1 or 0. Default: 0." example:"1"`
}

type probeItem struct {
	key    string
	period period
}

// Probe checks parameters and answers in Prometheus' text format. Its errors are for the client.
func (d *Service) Probe(ctx context.Context, p *ProbeParams) ([]byte, error) {
	in := &Input{Part: web.InQuery, KeyParam: "key", WindowsParam: "window", Keys: distinct(p.Keys),
		Windows: distinct(p.Windows)}
	asked, err := d.probeItems(ctx, in, p)
	if err != nil {
		return nil, web.InputProblem(err, web.InQuery)
	}
	if len(asked) > d.MaxProbe {
		return nil, tooManyTotals(len(asked), d.MaxProbe)
	}
	questions, periods := make([]window.Question, len(asked)), make([]period, len(asked))
	for i, a := range asked {
		questions[i], periods[i] = window.Question{Counter: a.key, Span: a.period.Span}, a.period
	}
	found, err := Read(ctx, d.Redis, func(ctx context.Context) (window.Answers, error) {
		return d.Reader.Answer(ctx, questions)
	})
	if err != nil {
		return nil, in.explain(err, periods...)
	}
	return exposition(asked, found)
}

// probeItems allows one source of counters, so that a scrape's number of series follows from one parameter.
func (d *Service) probeItems(ctx context.Context, in *Input, p *ProbeParams) ([]probeItem, error) {
	all, err := p.All.parse("all")
	if err != nil {
		return nil, err
	}
	sources := 0
	for _, given := range []bool{len(in.Keys) > 0, p.Top != "", p.Prefix != "", all} {
		if given {
			sources++
		}
	}
	switch {
	case sources == 0:
		return nil, web.BadInput("key", "missing: name counters with key, or ask for top=20, for a prefix, or for "+
			"all=1")
	case sources > 1:
		return nil, web.BadInput("key", "only one of key, top, prefix and all is allowed")
	case len(in.Windows) == 0:
		return nil, web.BadInput("window", "missing: must be %s", api.WindowHint)
	}
	periods, err := in.Periods()
	if err != nil {
		return nil, err
	}
	switch {
	case p.Top != "":
		return d.probeTop(ctx, in, periods, p.Top)
	case p.Prefix != "":
		in.Keys, err = d.probeNames(ctx, p.Prefix, d.MaxProbe/len(periods))
		if err != nil {
			return nil, err
		}
	case all:
		in.Keys = []string{window.AllHits}
	default:
		if err := in.CheckKeys(d.MaxKeys); err != nil {
			return nil, err
		}
	}
	out := make([]probeItem, 0, len(in.Keys)*len(periods))
	for _, key := range in.Keys {
		for _, period := range periods {
			out = append(out, probeItem{key, period})
		}
	}
	return out, nil
}

// probeTop checks the number of totals before it reads: each window is a top list of its own.
func (d *Service) probeTop(ctx context.Context, in *Input, periods []period, text api.Number) ([]probeItem, error) {
	most, err := text.Parse("top", 0, 1, maxTop)
	if err != nil {
		return nil, err
	}
	limit := int(most)
	if limit*len(periods) > d.MaxProbe {
		return nil, tooManyTotals(limit*len(periods), d.MaxProbe)
	}
	var out []probeItem
	for _, p := range periods {
		found, err := d.top(ctx, in, p, limit)
		if err != nil {
			return nil, err
		}
		for _, c := range found.Top {
			out = append(out, probeItem{c.Key, p})
		}
	}
	return out, nil
}

// probeNames asks for one name more than allowed, and refuses instead of truncating: a counter that is
// missing from a scrape would look as if it had no hits.
func (d *Service) probeNames(ctx context.Context, prefix string, most int) ([]string, error) {
	if err := api.CheckKey("prefix", prefix); err != nil {
		return nil, err
	}
	found, err := read.AllNames(ctx, func(ctx context.Context, q read.NamesQuestion) (read.Names, error) {
		return Read(ctx, d.Redis, func(ctx context.Context) (read.Names, error) { return d.Reader.Names(ctx, q) })
	}, read.NamesQuestion{Prefix: prefix}, most)
	if err == nil && len(found.Counters) > most {
		err = web.TooMuchInput("prefix",
			"more than %d counters begin with %s: at most %d totals are allowed in one answer (QUERY_MAX_PROBE): "+
				"use a longer prefix, top, or fewer windows",
			most, web.Excerpt(prefix), d.MaxProbe)
	}
	return found.Counters, err
}

func tooManyTotals(asked, most int) error {
	return web.NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf(
		"%d totals in one answer: at most %d are allowed (QUERY_MAX_PROBE): ask for fewer counters or windows", asked,
		most))
}

// exposition has a registry of its own per answer, because the labels are the caller's and must not stay.
func exposition(asked []probeItem, found window.Answers) ([]byte, error) {
	metric, names := "tallyroll_window_hits", []string{"window", "key"}
	if len(asked) > 0 && asked[0].key == window.AllHits { // of which a sum over keys must not be a part
		metric, names = "tallyroll_all_window_hits", names[:1]
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: metric + name, Help: help}, names)
	}
	total := gauge("", "Hits in the rolling window that ends now.")
	lower, upper := gauge("_lower", "There were at least this many hits."),
		gauge("_upper", "There were at most this many hits. +Inf if no worker has counted lately.")
	complete := gauge("_complete", "1 if no hit of the window is known to be missing, and hits are being "+
		"counted, else 0.")
	age := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tallyroll_probe_as_of_age_seconds", Help: "Seconds from as_of to now, by the clock of Redis: how old " +
			"these totals are.",
	})
	age.Set(SecondsSince(found.AsOf, found.Now))
	for i, a := range asked {
		labels := []string{a.period.Window, a.key}[:len(names)]
		t := TotalOf(a.key, a.period.Window, found.Answers[i], found.AsOf)
		total.WithLabelValues(labels...).Set(float64(t.Total))
		lower.WithLabelValues(labels...).Set(float64(t.Lower))
		upper.WithLabelValues(labels...).Set(t.Upper.Float())
		complete.WithLabelValues(labels...).Set(0)
		if t.Complete {
			complete.WithLabelValues(labels...).Set(1)
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(total, lower, upper, complete)
	if len(asked) > 0 { // else nothing was read that could be old
		registry.MustRegister(age)
	}
	families, err := registry.Gather()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, f := range families {
		_, err := expfmt.MetricFamilyToText(&out, f)
		if err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// distinct removes repetitions and keeps the order: Prometheus takes a series once.
func distinct(values []string) []string {
	out, seen := make([]string, 0, len(values)), make(map[string]bool)
	for _, v := range values {
		if !seen[v] {
			out, seen[v] = append(out, v), true
		}
	}
	return out
}
