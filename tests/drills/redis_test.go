package drills_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lose kills Redis and removes its data.
func (s *site) lose() (at time.Time) {
	s.t.Helper()
	s.redis.Kill()
	s.empty(s.redis.Dir())
	return time.Now()
}

func (d *drill) restoreRedisFromSnapshot(t *testing.T) {
	s := d.build(t)
	stop := s.load()
	var snapshot []byte
	d.step(t, "back up: BGSAVE, and copy dump.rdb", func() {
		require.NoError(t, s.redis.Client().BgSave(t.Context()).Err())
		s.awaitPersisted("rdb_bgsave_in_progress:0", "rdb_last_bgsave_status:ok")
		var err error
		if snapshot, err = os.ReadFile(filepath.Join(s.redis.Dir(), "dump.rdb")); err != nil {
			t.Fatal(err)
		}
	})
	s.publish(d.size) // the backup lacks these
	began := s.lose()
	d.step(t, "put dump.rdb into the empty folder of Redis, and appendonly no into redis.conf; start it", func() {
		require.NoError(t, os.WriteFile(filepath.Join(s.redis.Dir(), "dump.rdb"), snapshot, 0o600))
		s.configure("no")
		s.redis.Start()
	})
	d.step(t, "CONFIG SET appendonly yes, wait for the rewriting, and put it into redis.conf again", func() {
		s.config("appendonly", "yes")
		s.awaitPersisted("aof_enabled:1", "aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0", "aof_last_bgrewrite_status:ok")
		s.configure("yes")
	})
	stop()
	d.requireExactCounts(s, began)
	s.redis.Kill() // and the file holds all of it
	s.redis.Start()
	if lost, twice := s.settle(); lost+twice > 0 {
		t.Errorf("after a restart %d hits are lost and %d count twice", lost, twice)
	}
}

func (d *drill) restoreRedisFromFile(t *testing.T) {
	s := d.build(t)
	stop := s.load()
	backup := filepath.Join(t.TempDir(), "appendonlydir")
	live := filepath.Join(s.redis.Dir(), "appendonlydir")
	d.step(t, "back up: CONFIG SET auto-aof-rewrite-percentage 0, wait for a rewriting, copy appendonlydir, and set it to 100 again", func() {
		s.config("auto-aof-rewrite-percentage", "0")
		s.awaitPersisted("aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0")
		s.copy(live, backup)
		s.config("auto-aof-rewrite-percentage", "100")
	})
	s.publish(d.size)
	began := s.lose()
	d.step(t, "put appendonlydir into the empty folder of Redis, and start it", func() {
		s.copy(backup, live)
		s.redis.Start()
	})
	stop()
	d.requireExactCounts(s, began)
}

func (d *drill) loseRedis(t *testing.T) {
	s := d.build(t)
	stop := s.load()
	s.publish(d.size)
	began := s.lose()
	d.step(t, "start Redis empty", s.redis.Start)
	stop()
	d.requireExactCounts(s, began)
}
