package window_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

func TestUnsafeSettingsOfTheServerAreFound(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	client := server.Client()
	for name, c := range map[string]struct {
		policy, appendonly, save string
		refused                  bool
		warning                  string
	}{
		"as it should be": {policy: "noeviction", appendonly: "yes"},
		"snapshots":       {policy: "noeviction", appendonly: "no", save: "60 1000"},
		"no persistence":  {policy: "noeviction", appendonly: "no", warning: "persists nothing"},
		"some eviction":   {policy: "volatile-lru", appendonly: "yes", warning: "too low"},
		"any eviction":    {policy: "allkeys-lfu", appendonly: "yes", refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			settings := map[string]string{"maxmemory-policy": c.policy, "appendonly": c.appendonly, "save": c.save}
			for name, value := range settings {
				require.NoError(t, client.ConfigSet(t.Context(), name, value).Err())
			}
			warnings, err := schema.NewStore(client, "test").Client.CheckServer(t.Context())
			var eviction *window.EvictionError
			if errors.As(err, &eviction) != c.refused {
				t.Errorf("refused: %v", err)
			}
			if text := strings.Join(warnings, "\n"); (text != "") != (c.warning != "") || !strings.Contains(text, c.warning) {
				t.Errorf("warnings %q; want %q", text, c.warning)
			}
			// Otherwise the child that rewrites the file outlives its server, and writes while the test's directory
			// goes.
			stack.Eventually(t, "no rewrite of the append-only file", func() (bool, string) {
				info, err := client.Info(t.Context(), "persistence").Result()
				return err == nil && strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0"), info
			})
		})
	}
	t.Run("settings are not shown", func(t *testing.T) {
		stack.NewUser(t, server, "tallyroll", "secret", "~*", "+@all", "-config")
		limited := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "tallyroll", Password: "secret"})
		defer limited.Close()
		warnings, err := schema.NewStore(limited, "test").Client.CheckServer(t.Context())
		require.NoError(t, err)
		require.Len(t, warnings, 1)
		require.Contains(t, warnings[0], "does not reveal")
	})
}
