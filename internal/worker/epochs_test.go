package worker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Under a running worker Redis loses everything, and a worker of another version makes the namespace
// anew, with hashes that span two windows. The running worker then writes such hashes, too, and no others.
func TestANamespaceMadeAnewWithOtherEpochs(t *testing.T) {
	t.Parallel()
	const tiers = "1s/1h,1m/1d"
	r := newRig(t)
	r.createStream(0)
	w := r.start("TIERS=" + tiers)
	spans := func(seconds int64) {
		t.Helper()
		hashes := stack.Scan(t, r.redis.Client(), "test:*:h:1s:*")
		if len(hashes) == 0 {
			t.Error("there are no hashes of seconds")
		}
		for _, key := range hashes {
			epoch := r.redis.Client().Time(t.Context()).Val().Unix() / seconds
			// The hits are of this epoch, or of the one before if that has just ended.
			if !strings.Contains(key, fmt.Sprintf(":1s:%d:", epoch)) && !strings.Contains(key, fmt.Sprintf(":1s:%d:", epoch-1)) {
				t.Errorf("%s does not span %d s", key, seconds)
			}
		}
	}
	r.publish(50)
	r.settled(50)
	spans(256)

	require.NoError(t, errOf(r.redis.Client().TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.FlushAll(t.Context())
		p.Set(t.Context(), "test:layout", `{"version":1,"tiers":"`+tiers+`","shards":4,"hash":"xxhash64","id":"BEFORE","epoch_cells":7200}`, 0)
		return nil
	})))
	r.publish(50)
	stack.Eventually(t, "all hits in new hashes", func() (bool, string) {
		got, err := r.answer()
		return err == nil && got.Answers[0].Total == 100, fmt.Sprintf("%+v %v", got, err)
	})
	spans(7200)

	// And the next worker takes the namespace as it is.
	w.stop()
	r.start("TIERS=" + tiers)
	r.publish(50)
	r.settled(150)
	spans(7200)

	// If Redis loses everything again, it makes the namespace what it was.
	require.NoError(t, r.redis.Client().FlushAll(t.Context()).Err())
	stack.Eventually(t, "all hits again", func() (bool, string) {
		got, err := r.answer()
		return err == nil && got.Answers[0].Total == 150, fmt.Sprintf("%+v %v", got, err)
	})
	spans(7200)
}
