package stack

import (
	"context"
	"fmt"
	"testing"
)

func TestClusterFailsOverAndMovesSlots(t *testing.T) {
	OnlyInAll(t) // the tests of clusters show it, too
	t.Parallel()
	ctx := context.Background()
	c := Cluster(t, 1)
	set := func(key string) {
		t.Helper()
		Eventually(t, "the client to find the master", func() (bool, string) {
			err := c.Client().Set(ctx, key, key, 0).Err()
			return err == nil, fmt.Sprint(err)
		})
	}
	holds := func(key string) {
		t.Helper()
		if got, err := c.Client().Get(ctx, key).Result(); got != key {
			t.Errorf("%s holds %q, %v", key, got, err)
		}
	}
	set("{a}1")
	old := c.MasterOf("{a}")
	// The replica gets it a little later than the client its answer.
	if n, err := old.Client().Wait(ctx, 1, Hung).Result(); err != nil || n < 1 {
		t.Fatalf("%d replicas have the key, %v", n, err)
	}
	old.Kill()
	c.WaitOK()
	if now := c.MasterOf("{a}"); now == old || !now.Running() {
		t.Errorf("%s is still the master", old.Addr())
	}
	set("{a}2")
	old.Start()
	c.WaitOK()

	to := c.Other("{a}")
	m := c.MoveSlot("{a}", to)
	m.Keys("{a}1")
	holds("{a}1") // asked of one
	holds("{a}2") // and of the other
	m.Finish()
	if now := c.MasterOf("{a}"); now != to {
		t.Errorf("the slot is at %s, want %s", now.Addr(), to.Addr())
	}
	holds("{a}1")
	holds("{a}2")
}
