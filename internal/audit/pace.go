package audit

import (
	"context"
	"sync"
	"time"
)

// pace bounds how many items are read per second.
type pace struct {
	rate float64 // 0: as many as can be

	mu   sync.Mutex
	next time.Time
}

const (
	// leastPause is the shortest sleep that is worth it.
	leastPause = 5 * time.Millisecond
	// mostArrears bounds what is made up for after a sleep that was too long, or a slow answer.
	mostArrears = 100 * time.Millisecond
)

// wait waits until so many more items are due.
func (p *pace) wait(ctx context.Context, items int) {
	if p.rate == 0 || items == 0 {
		return
	}
	pause := p.add(items)
	if pause < leastPause {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// add adds items, and returns how long it is until they are due.
func (p *pace) add(items int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if earliest := now.Add(-mostArrears); p.next.Before(earliest) {
		p.next = earliest
	}
	p.next = p.next.Add(time.Duration(float64(items) / p.rate * 1e9))
	return p.next.Sub(now)
}
