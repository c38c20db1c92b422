package redrive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/outbox"
	"tallyroll/internal/rejects"
)

const (
	finishers = 8 // requests to the server at once
	// finishWithin bounds the retries of a request without an answer, finishPause is the wait between, and
	// finishTries bounds the lookups of a message, which a replica may not have yet.
	finishWithin = 30 * time.Second
	finishPause  = 200 * time.Millisecond
	finishTries  = 5
)

type fate struct {
	outbox.Fate
	reject *reject
	id     string // its Nats-Msg-Id
}

// finisher removes rejects from HITS_REJECTED once their messages are certainly stored.
type finisher struct {
	js       jetstream.JetStream
	rejected jetstream.Stream
	fates    chan fate
	count    *redriven
	done     func(*reject)
	group    sync.WaitGroup
	hopeless atomic.Pointer[error] // why a reject could not be removed; the others are not tried
}

// start starts to remove rejects. Its caller closes fates and then calls wait.
func (f *finisher) start(ctx context.Context) {
	for range finishers {
		f.group.Go(func() {
			for fate := range f.fates {
				f.finish(ctx, fate)
			}
		})
	}
}

func (f *finisher) wait() { f.group.Wait() }

func (f *finisher) finish(ctx context.Context, fate fate) {
	r := fate.reject
	why := ""
	switch {
	case fate.Code == outbox.CodeTooLarge:
		why = "larger than the stream takes"
	case !fate.Stored:
		why = f.verify(ctx, fate)
	}
	if why != "" {
		f.count.leave(why)
	} else {
		f.count.sent(fate.Repeat)
		f.remove(ctx, r)
	}
	f.done(r)
}

// verify reads the message because of which the stream refused another. A refusal alone proves nothing.
func (f *finisher) verify(ctx context.Context, fate fate) (why string) {
	var found *jetstream.RawStreamMsg
	err := persist(ctx, func() error {
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

// remove deletes a reject's parts, the first one last: by it the next run detects an interrupted removal.
func (f *finisher) remove(ctx context.Context, r *reject) {
	if why := f.hopeless.Load(); why != nil {
		f.count.stays(*why)
		return
	}
	slices.Sort(r.Positions)
	for _, position := range slices.Backward(slices.Compact(r.Positions)) {
		err := persist(ctx, func() error {
			err := f.rejected.DeleteMsg(ctx, position)
			if errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
				_, errGet := f.rejected.GetMsg(ctx, position)
				if errors.Is(errGet, jetstream.ErrMsgNotFound) {
					return nil // it has expired, or another publish has removed it
				}
			}
			return err
		})
		if err != nil {
			err = fmt.Errorf("delete message %d of %s: %w", position, rejects.Stream, err)
			f.hopeless.Store(&err)
			f.count.stays(err)
			return
		}
	}
}

// persist retries a request until there is an answer.
func persist(ctx context.Context, request func() error) error {
	began := time.Now()
	for try := 1; ; try++ {
		err := request()
		switch {
		case err == nil, errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful), time.Since(began) > finishWithin:
			return err
		case errors.Is(err, jetstream.ErrMsgNotFound) && try == finishTries:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(finishPause):
		}
	}
}
