package consume

import (
	"fmt"
	"sync"
	"time"

	"tallyroll/internal/human"
)

// patience is how long a commit may make no progress before the worker counts as not ready. It is
// longer than the transactions of any load take, and shorter than anyone waits for an answer.
const patience = 3 * time.Second

// waits says what each stream of a worker waits for.
type waits struct {
	mu sync.Mutex
	by map[string]wait // by stream
}

type wait struct {
	since time.Time
	why   error // the last failure; nil if there was none
}

func newWaits() *waits { return &waits{by: make(map[string]wait)} }

// begin notes that a commit begins, or that it has made progress.
func (w *waits) begin(stream string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by[stream] = wait{since: time.Now()}
}

// because notes what has failed.
func (w *waits) because(stream string, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.by[stream]
	if now.since.IsZero() {
		now.since = time.Now()
	}
	now.why = why
	w.by[stream] = now
}

func (w *waits) end(stream string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by, stream)
}

// why returns why a stream is not being read, or nil if that is not known.
func (w *waits) why(stream string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[stream].why
}

// lasting describes the commit that has waited longest, if it has waited for longer than patience. It
// returns an empty string if none has.
func (w *waits) lasting() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var longest string
	for stream, at := range w.by {
		if longest == "" || at.since.Before(w.by[longest].since) {
			longest = stream
		}
	}
	at := w.by[longest]
	took := time.Since(at.since)
	if longest == "" || took < patience {
		return ""
	}
	why := "no answer yet"
	if at.why != nil {
		why = at.why.Error()
	}
	return fmt.Sprintf("stream %s: a commit has waited for %s: %s", longest, human.Duration(took), why)
}
