package limit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redis/go-redis/v9"

	"tallyroll/tests/stack"
)

// remaining looks how much is left of a limit.
func (w *world) remaining(l *Limit, key string) int64 {
	w.t.Helper()
	return w.look(takeOf(l, key, 0)).Decisions[0].Remaining
}

func (w *world) wantRemaining(l *Limit, key string, want int64) {
	w.t.Helper()
	require.EqualValues(w.t, want, w.remaining(l, key))
}

// Takes that are asked for together are counted all or not at all: those of one key, and those of callers
// whose keys are, on the cluster, on different nodes.
func testTogether(t *testing.T, policy Policy, fresh func(*testing.T) *world) {
	other := Log // takes of two policies in one script
	if policy == Log {
		other = Cells
	}
	few, many := adhoc(t, time.Minute, 2, policy), adhoc(t, time.Hour, 5, other)
	for _, c := range []struct {
		name       string
		key, other string
	}{{"one key", "alice", "alice"}, {"two keys", "alice", "bob"}} {
		t.Run(c.name, func(t *testing.T) {
			w := fresh(t)
			a := w.take(takeOf(few, c.key, 2), takeOf(many, c.other, 3))
			if !a.Allowed || len(a.Decisions) != 2 || a.Decisions[0].Remaining != 0 || a.Decisions[1].Remaining != 2 {
				t.Fatalf("%+v", a)
			}
			for _, order := range [][]int{{0, 1}, {1, 0}} { // the one that refuses comes first or last
				takes := []Take{takeOf(few, c.key, 1), takeOf(many, c.other, 1)}
				a = w.take(takes[order[0]], takes[order[1]])
				refused, fits := a.Decisions[order[0]], a.Decisions[order[1]]
				if a.Allowed || refused.Allowed || refused.Take != takes[0] || !fits.Allowed || fits.Remaining != 2 || a.Decisive().Take != takes[0] {
					t.Fatalf("order %v: %+v", order, a)
				}
				w.wantRemaining(few, c.key, 0)
				w.wantRemaining(many, c.other, 2)
			}
			// What was to be given back is not, if the other take is refused.
			for _, order := range [][]int{{0, 1}, {1, 0}} {
				takes := []Take{takeOf(few, c.key, 1), takeOf(many, c.other, -2)}
				if a = w.take(takes[order[0]], takes[order[1]]); a.Allowed {
					t.Fatalf("order %v: %+v", order, a)
				}
				w.wantRemaining(many, c.other, 2)
			}
			if a = w.take(takeOf(many, c.other, 2), takeOf(few, c.key, -1)); !a.Allowed {
				t.Fatalf("%+v", a)
			}
			w.wantRemaining(few, c.key, 1)
			w.wantRemaining(many, c.other, 0)
			if a = w.look(takeOf(many, c.other, 1), takeOf(few, c.key, 1)); a.Allowed || !a.Decisions[1].Allowed {
				t.Fatalf("%+v", a)
			}
		})
	}
}

// manyTakes are takes of one caller, of more limits than one script decides about.
func manyTakes(t *testing.T, policy Policy) (out []Take) {
	t.Helper()
	for i := range 2*MaxTogether + 3 {
		l := *adhoc(t, time.Hour, 2, policy)
		l.Name = fmt.Sprint("many-", i)
		out = append(out, takeOf(&l, "alice", 1))
	}
	return out
}

// So are more takes than one script decides about.
func testTogetherOfMany(t *testing.T, policy Policy, fresh func(*testing.T) *world) {
	w, takes := fresh(t), manyTakes(t, policy)
	if a := w.take(takes...); !a.Allowed || len(a.Decisions) != len(takes) {
		t.Fatalf("%+v", a)
	}
	last := takes[len(takes)-1]
	w.take(last)
	a := w.take(takes...)
	if a.Allowed || a.Decisive().Take != last {
		t.Errorf("%+v", a)
	}
	for _, take := range takes[:len(takes)-1] {
		w.wantRemaining(take.Limit, "alice", 1)
	}
}

// If another caller takes the last hit between the scripts of many takes, what the scripts before have
// counted is undone.
func TestManyTakesAreUndone(t *testing.T) {
	t.Parallel()
	limiter, server := realServer(t)
	for _, policy := range Policies() {
		takes := manyTakes(t, policy)
		mustTake(t, limiter, takes...) // loads the script
		last, other := takes[len(takes)-1], New(stack.ProgramClient(t, server.URL()), "real", 5*time.Second)
		scripts := 0 // three look, and the third of three that count is too late
		limiter.store.client.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if strings.HasPrefix(cmd.Name(), "eval") {
				if scripts++; scripts == 6 {
					mustTake(t, other, last)
				}
			}
			return next(ctx, cmd)
		}))
		a := mustTake(t, limiter, takes...)
		if a.Allowed || a.Decisive().Take != last || scripts < 6 {
			t.Errorf("%s, %d scripts: %+v", policy, scripts, a)
		}
		for _, take := range takes[:len(takes)-1] {
			if a, err := other.Look(t.Context(), []Take{take}); err != nil || a.Decisions[0].Remaining != 1 {
				t.Errorf("%s: %+v, %v: want 1 to remain, because the request was refused", policy, a, err)
			}
		}
	}
}

func testBadTakes(t *testing.T, policy Policy, fresh func(*testing.T) *world) {
	w, l := fresh(t), adhoc(t, time.Minute, 5, policy)
	_, err := w.limiter.Take(t.Context(), []Take{takeOf(l, "alice", 1), takeOf(l, "alice", 1)})
	var bad *TakeError
	require.ErrorAs(t, err, &bad, "the same take twice")
	require.Equal(t, "key", bad.Field)
	_, err = w.limiter.Take(t.Context(), []Take{takeOf(l, "alice", 1), takeOf(l, "bob", 6)})
	if !errors.As(err, &bad) || bad.Field != "n" || bad.Take.Caller != "bob" {
		t.Errorf("more than max: %v", err)
	}
	w.wantRemaining(l, "alice", 5)
}

// Callers with the same tag would show nothing on the cluster.
func TestCallersOfTestsHaveDifferentTags(t *testing.T) {
	t.Parallel()
	tags := map[uint64]bool{}
	for _, key := range people {
		tags[hashTag(key)] = true
	}
	if len(tags) != len(people) {
		t.Errorf("%d tags for %v", len(tags), people)
	}
}
