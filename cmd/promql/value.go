package main

import (
	"encoding/json"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// encodeValue encodes at most limit series of a result, and reports whether it has left some out. The types
// of the engine encode themselves as Prometheus does.
func encodeValue(v parser.Value, limit int) (data json.RawMessage, cut bool, err error) {
	switch list := v.(type) {
	case promql.Vector:
		list, cut = first(list, limit)
		v = list
	case promql.Matrix:
		list, cut = first(list, limit)
		v = list
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
