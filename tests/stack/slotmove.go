package stack

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"
)

// SlotMove is a slot on its way from one master to another: as redis-cli moves
// it, in steps, so that a test decides when.
type SlotMove struct {
	c        *RedisCluster
	from, to *RedisServer
	slot     int64
}

// MoveSlot begins to move the slot of a key to another master. No key has moved yet.
func (c *RedisCluster) MoveSlot(key string, to *RedisServer) *SlotMove {
	c.t.Helper()
	m := &SlotMove{c: c, from: c.MasterOf(key), to: to}
	m.slot = m.from.Client().ClusterKeySlot(c.t.Context(), key).Val()
	m.do(to, "cluster", "setslot", m.slot, "importing", c.id(c.t.Context(), m.from))
	m.do(m.from, "cluster", "setslot", m.slot, "migrating", c.id(c.t.Context(), to))
	return m
}

func (m *SlotMove) do(node *RedisServer, args ...any) {
	m.c.t.Helper()
	if err := node.Client().Do(m.c.t.Context(), args...).Err(); err != nil {
		m.c.t.Fatalf("%v: %v", args, err)
	}
}

// Keys moves the given keys of the slot.
func (m *SlotMove) Keys(keys ...string) {
	m.c.t.Helper()
	args := []any{"migrate", "127.0.0.1", m.to.Port(), "", 0, 5000, "keys"}
	for _, key := range keys {
		args = append(args, key)
	}
	m.do(m.from, args...)
}

// Some moves up to n keys, as many as it can, and says how many were there to move.
func (m *SlotMove) Some(n int) int {
	m.c.t.Helper()
	keys, err := m.from.Client().ClusterGetKeysInSlot(m.c.t.Context(), int(m.slot), n).Result()
	if err != nil {
		m.c.t.Fatalf("keys of slot %d: %v", m.slot, err)
	}
	if len(keys) > 0 {
		m.Keys(keys...)
	}
	return len(keys)
}

// Finish moves what is left, gives the slot to its new master and waits until
// all nodes know.
func (m *SlotMove) Finish() {
	m.c.t.Helper()
	for m.Some(100) > 0 {
	}
	id := m.c.id(m.c.t.Context(), m.to)
	m.do(m.to, "cluster", "setslot", m.slot, "node", id) // first, or nobody would have it for a moment
	m.do(m.from, "cluster", "setslot", m.slot, "node", id)
	m.c.WaitOK()
}

// MoveSlotAtOnce moves the slot of a key to another master as Valkey does from version 9 on: the server sends
// all keys, and hands over in one step. It returns when all nodes know, and reports false if this server
// cannot.
func (c *RedisCluster) MoveSlotAtOnce(key string, to *RedisServer) bool {
	c.t.Helper()
	from := c.MasterOf(key)
	slot := from.Client().ClusterKeySlot(c.t.Context(), key).Val()
	err := from.Client().Do(c.t.Context(), "cluster", "migrateslots", "slotsrange", slot, slot, "node", c.id(c.t.Context(), to)).Err()
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "unknown subcommand") {
		return false
	}
	require.NoError(c.t, err, "cluster migrateslots")
	Eventually(c.t, "the slot at its new master", func() (bool, string) {
		state, err := from.Client().Do(c.t.Context(), "cluster", "getslotmigrations").Result()
		return c.MasterOf(key) == to, fmt.Sprint(state, err)
	})
	c.WaitOK()
	return true
}
