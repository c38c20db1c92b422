package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A stream's subjects are edited while half of the shards are behind: what they read
// again keeps its name, also after a crash, and what is new has the new one.
func TestSubjectsEditedWhileShardsAreBehind(t *testing.T) {
	t.Parallel()
	const messages = 200
	r := newRig(t)
	handle := r.createStream(0)
	for i := range messages {
		require.NoError(t, errOf(r.js.Publish(t.Context(), fmt.Sprintf("hits.shop.%d", i), nil)))
	}
	w := r.start()
	called := time.Now().UnixMilli()
	r.passed(called)
	w.stop()

	r.loseShards()
	edit := func(subjects ...string) {
		config := handle.CachedInfo().Config
		config.Subjects = subjects
		require.NoError(t, errOf(r.js.UpdateStream(t.Context(), config)))
	}
	edit("hits.shop.>")
	r.start()
	r.passed(time.Now().UnixMilli())
	require.NoError(t, errOf(r.js.Publish(t.Context(), "hits.shop.new", nil)))
	r.passed(time.Now().UnixMilli())
	want := map[string]int64{"new": 1, "shop.new": 0}
	for i := range messages {
		want[fmt.Sprintf("shop.%d", i)] = 1
		want[fmt.Sprint(i)] = 0
	}
	r.compare(want)

	// A running worker notices an edit by itself.
	edit("hits.shop.>", "clicks.>")
	r.logs.await(t, "named by them from here on", "clicks.>")
	require.NoError(t, errOf(r.js.Publish(t.Context(), "clicks.a", nil)))
	want["a"], want["clicks.a"] = 1, 0
	r.passed(time.Now().UnixMilli())
	r.compare(want)
}
