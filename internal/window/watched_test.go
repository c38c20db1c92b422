package window_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// interrupts does something once, before a command of the requests that follow. A transaction is one
// command, because Redis runs nothing else within it.
type interrupts struct {
	trips atomic.Int32 // requests about the namespace since arm
	left  atomic.Int32 // commands before the one that is to wait; negative if none is
	do    func()
}

// arm lets do happen before the command with this number, from 0.
func (h *interrupts) arm(before int, do func()) {
	h.do = do
	h.trips.Store(0)
	h.left.Store(int32(before))
}

func (*interrupts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *interrupts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.count(cmd)
		return next(ctx, cmd)
	}
}

func (h *interrupts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !h.count(cmds...) || h.left.Load() < 0 {
			return next(ctx, cmds)
		}
		size := len(cmds)
		if cmds[0].Name() == "multi" {
			size = 1
		}
		at := int(h.left.Add(int32(-size))) + size
		if at >= size {
			return next(ctx, cmds)
		}
		var first error
		if at > 0 {
			first = next(ctx, cmds[:at])
		}
		h.do()
		return errors.Join(first, next(ctx, cmds[at:]))
	}
}

// count counts a request if it is about the namespace. It reports whether it is.
func (h *interrupts) count(cmds ...redis.Cmder) bool {
	ours := slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool {
		return cmd.Name() == "unwatch" || slices.ContainsFunc(cmd.Args(), func(arg any) bool {
			key, _ := arg.(string)
			return strings.HasPrefix(key, "test:{")
		})
	})
	if ours {
		h.trips.Add(1)
	}
	return ours
}

func aCommitTakesTwoRoundTrips(t *testing.T, r *rig) {
	now := time.Now()
	hook := new(interrupts)
	r.addHook(hook)
	b, shard := batchOf("a", now.UnixMilli(), 1)
	w := r.writers()[shard]
	for seq := range uint64(3) { // the first also sets expiries
		hook.arm(-1, nil)
		_, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(seq+1, now))
		if trips := hook.trips.Load(); err != nil || trips != 2 {
			t.Errorf("commit %d: %d round trips, want 2: %v", seq+1, trips, err)
		}
	}
}

func anotherWriterBetweenTwoCommands(t *testing.T, r *rig) { commitsOnce(t, r, func() {}) }

// EXEC must not go out on a new connection, where no key is watched.
func aCutBetweenTwoCommands(t *testing.T, r *rig) {
	commitsOnce(t, r, func() {
		if err := r.eachServer(t.Context(), func(ctx context.Context, server *redis.Client) error {
			return server.ClientKillByFilter(ctx, "type", "normal").Err() // all but the one that asks
		}); err != nil {
			t.Error(err)
		}
	})
}

// commitsOnce lets another writer commit the same hit before each of a commit's commands in turn, and then
// something else happen. The hit counts once.
func commitsOnce(t *testing.T, r *rig, then func()) {
	now := time.Now()
	hook := new(interrupts)
	r.addHook(hook)
	for before := 0; ; before++ {
		counter := fmt.Sprintf("a%d", before)
		b, shard := batchOf(counter, now.UnixMilli(), 1)
		to := cursorAt(uint64(before+1), now)
		writers, another := r.writers(), r.writers()
		hook.arm(before, func() {
			if _, err := another[shard].Commit(t.Context(), b.Shard(shard), to); err != nil {
				t.Error(err)
			}
			then()
		})
		_, err := writers[shard].Commit(t.Context(), b.Shard(shard), to)
		interrupted := hook.left.Swap(-1) < 0
		if errors.Is(err, window.ErrFenced) != interrupted || err != nil && !interrupted {
			t.Errorf("before command %d: %v", before, err)
		}
		if a := r.total(counter, time.Minute, now.Add(time.Second)); a.Upper != 1 {
			t.Errorf("another writer before command %d: the hit counts %d times", before, a.Upper)
		}
		if !interrupted {
			if before < 5 { // WATCH, TIME, HMGET, a GET or more, the transaction
				t.Errorf("a commit had only %d commands", before)
			}
			return
		}
	}
}

// A WATCH that stayed on the pooled connection would spoil the next transaction on it.
func aCommitThatGivesUpWatchesNothing(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	old, young := r.writers()[shard], r.writers()[shard]
	require.NoError(t, errOf(young.Commit(t.Context(), b.Shard(shard), cursorAt(1, now))))
	hook := new(interrupts)
	r.addHook(hook)
	hook.arm(-1, nil)
	if _, err := old.Commit(t.Context(), b.Shard(shard), cursorAt(1, now)); !errors.Is(err, window.ErrFenced) {
		t.Fatal(err)
	}
	if n := hook.trips.Load(); n != 2 {
		t.Errorf("%d requests, want 2: the look and UNWATCH", n)
	}
	for seq := range uint64(3) { // the pool gives out the connection that came back last
		done, err := young.Commit(t.Context(), b.Shard(shard), cursorAt(seq+2, now))
		if err != nil || done.Conflicts != 0 {
			t.Errorf("%d conflicts, want none: %v", done.Conflicts, err)
		}
	}
}

// If Redis refuses WATCH and answers the reads behind it, nothing may follow from them.
func nothingIsCommittedUnwatched(t *testing.T, r *rig) {
	now := time.Now()
	b, shard := batchOf("a", now.UnixMilli(), 1)
	w := r.writers()[shard]
	rights := func(change string) {
		if err := r.eachServer(t.Context(), func(ctx context.Context, server *redis.Client) error {
			return server.Do(ctx, "acl", "setuser", "default", change).Err()
		}); err != nil {
			t.Fatal(err)
		}
	}
	refused := 0
	w.OnRetry = func(err error) {
		if refused++; !redis.IsPermissionError(err) {
			t.Errorf("refused for another reason: %v", err)
		}
		rights("+watch")
	}
	rights("-watch")
	done, err := w.Commit(t.Context(), b.Shard(shard), cursorAt(1, now))
	if err != nil || refused != 1 || done.Attempts != 1 {
		t.Errorf("refused %d times, %d transactions; want 1 of each: %v", refused, done.Attempts, err)
	}
	require.EqualValues(t, 1, r.total("a", time.Minute, now.Add(time.Second)).Upper)
}

// If Redis refuses the password of a new connection, go-redis gives commands of a pipeline no error. That is neither a
// cursor that is missing nor one of somebody else: the commit waits, and counts once.
func TestARefusedPasswordIsWaitedOut(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	require.NoError(t, server.Client().Do(t.Context(), "acl", "setuser", "counter", "on", ">right", "allkeys", "allcommands").Err())
	var password atomic.Value
	password.Store("right")
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1,
		CredentialsProvider: func() (string, string) { return "counter", password.Load().(string) }})
	defer client.Close()
	store := window.NewStore(client, "test")
	tiers, err := window.ParseTiers("1s/1m")
	require.NoError(t, err)
	layout, err := store.OpenLayout(t.Context(), window.Layout{Tiers: tiers, Shards: 1})
	require.NoError(t, err)
	w, err := store.OpenWriter(t.Context(), layout, "HITS", 0)
	require.NoError(t, err)
	refused := 0
	w.OnRetry = func(err error) {
		if refused++; !strings.Contains(err.Error(), "WRONGPASS") {
			t.Errorf("retried after: %v", err)
		}
		password.Store("right")
	}
	now := time.Now()
	for seq := range uint64(3) {
		if seq > 0 {
			password.Store("wrong")
			require.NoError(t, server.Client().Do(t.Context(), "client", "kill", "user", "counter").Err())
		}
		b := window.NewBatch(layout)
		b.Add([]byte("c"), window.HashCounter([]byte("c")), now.UnixMilli(), now.UnixMilli(), 1)
		to := window.Cursor{Created: 1, Seq: seq + 1, Stored: now.UnixNano(), AsOf: now.UnixMilli()}
		if done, err := w.Commit(t.Context(), b.Shard(0), to); err != nil || done.Failed != nil {
			t.Fatalf("commit %d: %v, %v", seq, err, done.Failed)
		}
	}
	if refused < 2 {
		t.Errorf("%d attempts were refused, want one or two of each commit", refused)
	}
	for _, key := range stack.Scan(t, server.Client(), "test:{0}:h:*:c") {
		for cell, n := range server.Client().HGetAll(t.Context(), key).Val() {
			if n != "3" {
				t.Errorf("%s has %s in cell %s, want 3", key, n, cell)
			}
		}
	}
}
