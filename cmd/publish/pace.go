package main

import (
	"time"

	"tallyroll/internal/hit"
)

// pacer holds hits back to a multiple of the log's own pace.
type pacer struct {
	speed float64 // 10: ten times as fast as the log
	wait  func(until time.Time) error

	begun bool
	start time.Time // when the first hit that has a time was let through
	first int64     // that hit's ts
}

// pace waits until it is the hit's turn. Hits older than the first, and hits without a time, do not wait.
func (p *pacer) pace(h hit.Hit) error {
	if h.At == hit.NoTime {
		return nil
	}
	if !p.begun {
		p.begun, p.start, p.first = true, time.Now(), h.At
		return nil
	}
	behind := float64(h.At-p.first) * float64(time.Millisecond) / p.speed
	if behind <= 0 {
		return nil
	}
	// A pace of centuries would overflow the duration.
	return p.wait(p.start.Add(time.Duration(min(behind, float64(maxPause)))))
}

const maxPause = 100 * 365 * 24 * time.Hour
