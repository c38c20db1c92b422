package limit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/tests/stack"
)

// A reset cannot be decided without Redis, whatever the limit's fail mode.
func TestResetWithoutRedis(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", stack.FreePort(t)), MaxRetries: -1})
	defer client.Close()
	lim, err := Adhoc(time.Minute, 10, Log)
	must(t, err)
	l := New(client, "test", DefaultTimeout)
	for try := range failuresInARow + 1 { // the last finds that Redis is left alone
		err := l.Reset(t.Context(), Take{Limit: lim, Key: "k", Under: "k"})
		var unavailable *UnavailableError
		if !errors.As(err, &unavailable) || unavailable.Limit != lim {
			t.Errorf("try %d: %v; want an UnavailableError", try, err)
		}
	}
}
