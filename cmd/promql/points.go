package main

import (
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// point is a sample: a moment (Unix milliseconds) and a value.
type point struct {
	t int64
	f float64
}

func (p point) T() int64                      { return p.t }
func (p point) F() float64                    { return p.f }
func (p point) ST() int64                     { return 0 }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }

// points are samples in the order of time.
type points []point

func (p points) Get(i int) chunks.Sample { return p[i] }
func (p points) Len() int                { return len(p) }

func (p points) iterator(chunkenc.Iterator) chunkenc.Iterator {
	return storage.NewListSeriesIterator(p)
}
