package window_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

func TestCheckServer(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	client := server.Client()
	for _, c := range []struct {
		name, policy, appendonly, save string
		refused                        bool
		warning                        string
	}{
		{name: "as it should be", policy: "noeviction", appendonly: "yes"},
		{name: "snapshots", policy: "noeviction", appendonly: "no", save: "60 1000"},
		{name: "no persistence", policy: "noeviction", appendonly: "no", warning: "persists nothing"},
		{name: "some eviction", policy: "volatile-lru", appendonly: "yes", warning: "too low"},
		{name: "any eviction", policy: "allkeys-lfu", appendonly: "yes", refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range map[string]string{"maxmemory-policy": c.policy, "appendonly": c.appendonly, "save": c.save} {
				require.NoError(t, client.ConfigSet(t.Context(), name, value).Err())
			}
			warnings, err := window.NewStore(client, "test").CheckServer(t.Context())
			var eviction *window.EvictionError
			if errors.As(err, &eviction) != c.refused {
				t.Errorf("refused: %v", err)
			}
			if text := strings.Join(warnings, "\n"); (text != "") != (c.warning != "") || !strings.Contains(text, c.warning) {
				t.Errorf("warnings %q; want %q", text, c.warning)
			}
			// Otherwise the child that rewrites the file outlives its server, and writes while the test's directory is removed.
			stack.Eventually(t, "no rewrite of the append-only file", func() (bool, string) {
				info, err := client.Info(t.Context(), "persistence").Result()
				return err == nil && strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0"), info
			})
		})
	}
	t.Run("settings are not told", func(t *testing.T) {
		require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "tallyroll", "on", ">secret", "~*", "+@all", "-config").Err())
		limited := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "tallyroll", Password: "secret"})
		defer limited.Close()
		warnings, err := window.NewStore(limited, "test").CheckServer(t.Context())
		if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "does not reveal") {
			t.Errorf("%q, %v", warnings, err)
		}
	})
}
