package wait

// Signal wakes the goroutine that waits for it. It holds one token. The woken goroutine checks everything
// that may have changed, so a second token would add nothing.
type Signal chan struct{}

func NewSignal() Signal { return make(Signal, 1) }

// Give wakes the goroutine that waits, or the next one to wait. It never blocks.
func (s Signal) Give() {
	select {
	case s <- struct{}{}:
	default:
	}
}
