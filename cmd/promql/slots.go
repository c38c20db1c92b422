package main

import "context"

// slots bounds how many queries the engine runs at a time.
type slots chan struct{}

func newSlots(n int) slots { return make(slots, n) }

func (s slots) GetMaxConcurrent() int { return cap(s) }

// Insert waits for a slot until ctx ends. All slots are alike, so their number says nothing.
func (s slots) Insert(ctx context.Context, _ string) (int, error) {
	select {
	case s <- struct{}{}:
		return 0, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s slots) Delete(int)   { <-s }
func (s slots) Close() error { return nil }
