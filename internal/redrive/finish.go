package redrive

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/wait"
	"tallyroll/internal/rejects"
)

const (
	removers = 8 // requests to the server at once
	// removeWithin bounds the retries of a request without an answer, retryPause is the wait between, and
	// lookupTries bounds the lookups of a message, which a replica may not have yet.
	removeWithin = 30 * time.Second
	retryPause   = 200 * time.Millisecond
	lookupTries  = 5
)

type outcome struct {
	outbox.Outcome
	reject *reject
	id     string // its Nats-Msg-Id
}

// remover removes rejects from HITS_REJECTED once their messages are certainly stored.
type remover struct {
	js       jetstream.JetStream
	rejected jetstream.Stream
	outcomes chan outcome
	count    *counts
	bar      *progress.Bar
	group    sync.WaitGroup
	failure  atomic.Pointer[error] // why a reject could not be removed; the others are not tried
}

// start starts to remove rejects. Its caller closes outcomes and then calls wait.
func (f *remover) start(ctx context.Context) {
	for range removers {
		f.group.Go(func() {
			for fate := range f.outcomes {
				f.handle(ctx, fate)
			}
		})
	}
}

func (f *remover) wait() { f.group.Wait() }

func (f *remover) handle(ctx context.Context, fate outcome) {
	r := fate.reject
	why := ""
	switch {
	case fate.Code == outbox.CodeTooLarge:
		why = "larger than the stream takes"
	case !fate.Stored:
		why = f.verify(ctx, fate)
	}
	if why != "" {
		f.count.countLeft(why)
	} else {
		f.count.countSent(fate.Repeat)
		f.remove(ctx, r)
	}
	f.bar.Add(1)
}

// verify reads the message because of which the stream refused another. A refusal alone proves nothing.
func (f *remover) verify(ctx context.Context, fate outcome) (why string) {
	var found *jetstream.RawStreamMsg
	err := untilAnswered(ctx, func() error {
		stream, err := f.js.Stream(ctx, fate.Stream)
		if err != nil {
			return err
		}
		found, err = stream.GetMsg(ctx, fate.Last)
		return err
	})
	switch {
	case err != nil:
		return fmt.Sprintf("not certainly stored (%v): run it again", err)
	case found.Header.Get(nats.MsgIdHdr) != fate.id:
		return "another message has its subject: run it again"
	}
	return ""
}

func (f *remover) remove(ctx context.Context, r *reject) {
	if why := f.failure.Load(); why != nil {
		f.count.countKept(*why)
		return
	}
	err := untilAnswered(ctx, func() error {
		err := f.rejected.DeleteMsg(ctx, r.Position)
		if errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
			_, errGet := f.rejected.GetMsg(ctx, r.Position)
			if errors.Is(errGet, jetstream.ErrMsgNotFound) {
				return nil // it has expired, or another publish has removed it
			}
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("delete message %d of %s: %w", r.Position, rejects.Stream, err)
		f.failure.Store(&err)
		f.count.countKept(err)
	}
}

// untilAnswered retries a request until there is an answer.
func untilAnswered(ctx context.Context, request func() error) error {
	began := time.Now()
	for try := 1; ; try++ {
		err := request()
		switch {
		case err == nil, errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful), time.Since(began) > removeWithin:
			return err
		case errors.Is(err, jetstream.ErrMsgNotFound) && try == lookupTries:
			return err
		}
		if err := wait.Sleep(ctx, retryPause); err != nil {
			return err
		}
	}
}
