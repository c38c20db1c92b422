package window_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/tests/stack"
)

// A balancer has forgotten the connections, or the reply to a transaction is lost with its connection. Reads
// are repeated. A commit looks at the cursor once more, counts once, and calls it no outage.
func TestConnectionsThatAreGoneAreNoOutage(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	balancer := stack.NewBalancer(t, server.Addr())
	r := newRig(t, &backend{client: stack.ProgramClient(t, "redis://"+balancer.Addr()+"/0")})
	exec := r.addTrouble()
	now, s := time.Now(), r.open("HITS")
	s.commit("a", now, 1)
	s.of("a").OnRetry = func(err error) { t.Error(err) }
	for i, lose := range []func(){
		balancer.Forget,
		balancer.CutReply,
		func() { exec.Store(&trouble{before: balancer.Forget}) }, // EXEC is not executed
		func() { exec.Store(&trouble{before: balancer.CutReply}) },
	} {
		lose()
		before := s.seq
		got := s.commit("a", now, 1)
		require.EqualValues(t, 1, got.Hits)
		require.Equal(t, before+1, s.seq)
		r.mustHold("a", now, int64(i+2))
	}
	for name, ask := range map[string]func(context.Context) error{
		"totals": func(ctx context.Context) error {
			return errOf(r.reader.Answer(ctx, []window.Question{{Counter: "a", Span: window.Last(time.Hour)}}))
		},
		"top":   func(ctx context.Context) error { return errOf(r.reader.Top(ctx, window.Last(time.Hour), 1)) },
		"names": func(ctx context.Context) error { return errOf(r.reader.Names(ctx, read.NamesQuestion{Limit: 1})) },
	} {
		// The other commands of a question come after the first, so each of them is the one that fails in turn.
		var commands int
		var gone int
		r.addHook(t, func(_ context.Context, cmds []redis.Cmder, send func([]redis.Cmder) error) error {
			if commands++; commands == gone {
				balancer.Forget()
			}
			return send(cmds)
		})
		require.NoError(t, ask(t.Context()), name)
		for all := commands; gone < all; {
			gone, commands = gone+1, 0
			require.NoError(t, ask(t.Context()), "%s, request %d", name, gone)
		}
		gone = 0
	}
}
