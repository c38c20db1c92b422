package main

import (
	"encoding/json"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// encodeValue encodes at most limit series of a result, and reports whether it has left some out. The types
// of the engine encode themselves as Prometheus does. The engine has counted samples, but not what their labels take.
func (s *service) encodeValue(v parser.Value, limit int) (data json.RawMessage, cut bool, err error) {
	bytes := 0
	count := func(l labels.Label) { bytes += len(l.Name) + len(l.Value) }
	switch list := v.(type) {
	case promql.Vector:
		list, cut = first(list, limit)
		for _, sample := range list {
			sample.Metric.Range(count)
		}
		v = list
	case promql.Matrix:
		list, cut = first(list, limit)
		for _, series := range list {
			series.Metric.Range(count)
		}
		v = list
	}
	if most := labelsPerSample * s.settings.MaxSamples; bytes > most {
		return nil, false, refused("the labels of the answer have %d bytes: at most %d are allowed (%d per PROMQL_MAX_SAMPLES): ask for fewer series, or set limit", bytes, most, labelsPerSample)
	}
	data, err = json.Marshal(queryData{ResultType: v.Type(), Result: v})
	return data, cut, err
}

// first returns the first n elements, or all of them if n is 0.
func first[S ~[]E, E any](list S, n int) (out S, cut bool) {
	if n > 0 && len(list) > n {
		return list[:n], true
	}
	return list, false
}
