package main

import (
	"io"
	"sync/atomic"
	"time"

	"tallyroll/internal/boot"
)

// progress shows on a terminal how many hits are stored.
type progress struct {
	screen *boot.Screen
	start  time.Time
	total  atomic.Int64 // 0 while nobody knows
	done   atomic.Int64
}

func newProgress(out io.Writer) *progress { return newProgressOf(out, "hits") }

func newProgressOf(out io.Writer, items string) *progress {
	return &progress{screen: boot.NewScreen(out, boot.Words{Items: items, End: "done"}), start: time.Now()}
}

// expect says how many hits there will be.
func (p *progress) expect(hits int64) { p.total.Store(hits) }

func (p *progress) stored(hits int) {
	done, total := p.done.Add(int64(hits)), p.total.Load()
	rate := float64(done) / time.Since(p.start).Seconds()
	p.screen.Progress("", boot.Progress{
		Done: uint64(done), Left: uint64(max(0, total-done)), Open: total == 0, PerSecond: rate, Gained: rate,
	})
}

// end takes the bar away, so that the last line stands alone.
func (p *progress) end() { p.screen.Progress("", boot.Progress{}) }
