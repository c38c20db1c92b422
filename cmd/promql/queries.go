package main

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// maxSteps is Prometheus's bound on the points of one series in an answer.
const maxSteps = 11_000

// queryData is what both kinds of queries answer.
type queryData struct {
	ResultType parser.ValueType `json:"resultType"`
	Result     parser.Value     `json:"result"`
}

// query answers at one moment.
func (s *service) query(r *http.Request) (found, error) {
	now := time.Now()
	at, err := timeParam(r, "time", &now)
	if err != nil {
		return found{}, err
	}
	return s.evaluate(r, func(ctx context.Context, q *querier, opts promql.QueryOpts, text string) (promql.Query, error) {
		return s.engine.NewInstantQuery(ctx, q, opts, text, at)
	})
}

// queryRange answers at each step of a range.
func (s *service) queryRange(r *http.Request) (found, error) {
	start, err := timeParam(r, "start", nil)
	if err != nil {
		return found{}, err
	}
	end, err := timeParam(r, "end", nil)
	if err != nil {
		return found{}, err
	}
	step, err := durationParam(r, "step", true)
	if err != nil {
		return found{}, err
	}
	switch {
	case end.Before(start):
		return found{}, badData("invalid parameter %q: it is before start: a moment from start on is allowed", "end")
	case end.Sub(start)/step > maxSteps:
		return found{}, badData("%d points per series: at most %d are allowed: choose a longer step", end.Sub(start)/step, maxSteps)
	}
	return s.evaluate(r, func(ctx context.Context, q *querier, opts promql.QueryOpts, text string) (promql.Query, error) {
		return s.engine.NewRangeQuery(ctx, q, opts, text, start, end, step)
	})
}

// evaluate lets the engine answer, within the time that the request and the settings allow.
func (s *service) evaluate(r *http.Request, prepare func(context.Context, *querier, promql.QueryOpts, string) (promql.Query, error)) (found, error) {
	timeout, err := durationParam(r, "timeout", false)
	if err != nil {
		return found{}, err
	}
	limit, err := limitParam(r)
	if err != nil {
		return found{}, err
	}
	if timeout == 0 || timeout > s.settings.Timeout {
		timeout = s.settings.Timeout
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()

	text := r.FormValue("query")
	if _, err := s.parser.ParseExpr(text); err != nil { // before Redis is asked
		return found{}, badData("invalid parameter %q: %v", "query", err)
	}
	q, err := s.newQuerier(ctx)
	if err != nil {
		return found{}, err
	}
	prepared, err := prepare(ctx, q, promql.NewPrometheusQueryOpts(false, q.lookback()), text)
	if err != nil {
		if ctx.Err() != nil {
			return found{}, err
		}
		return found{}, badData("invalid parameter %q: %v", "query", err)
	}
	defer prepared.Close()
	result := prepared.Exec(ctx)
	if result.Err != nil {
		return found{}, result.Err
	}
	// The engine owns what the value is made of until Close, so it is encoded by then.
	data, cut, err := encodeValue(result.Value, limit)
	if err != nil {
		return found{}, err
	}
	out := found{data: data, warnings: result.Warnings, query: text}
	if cut {
		out.warnings = out.warnings.Add(errTruncated)
	}
	return out, nil
}
