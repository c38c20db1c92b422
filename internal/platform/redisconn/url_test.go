package redisconn

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/cases"
)

func TestRedisURLSaysKindAddressAndLogin(t *testing.T) {
	cases.Check(t, "redisurl", func(t *testing.T, section, given string) string {
		var u URL
		if err := u.UnmarshalText([]byte(given)); err != nil {
			require.Equal(t, "refused", section, err)
			require.NotContains(t, err.Error(), "hunter2", given)
			allowed, why, _ := strings.Cut(err.Error(), " (")
			require.Contains(t, allowed, "redis+sentinel://", given)
			return "(" + why
		}
		require.NotEqual(t, "refused", section, given)
		client := Settings{URL: u}.Client()
		defer client.Close()
		kind := "single"
		retries := 0 // what counts twice when it is repeated is never repeated by a client (redis_test.go)
		switch c := client.(type) {
		case *redis.ClusterClient:
			kind = "cluster"
			node := redis.NewClient(&redis.Options{MaxRetries: c.Options().MaxRetries})
			defer node.Close()
			retries = node.Options().MaxRetries
			require.False(t, c.Options().ReadOnly, "it reads from replicas")
		case *redis.Client:
			if c.Options().Addr == "FailoverClient" {
				kind = "sentinel"
			}
			retries = c.Options().MaxRetries
		}
		require.Zero(t, retries, given)
		o := *u.options
		out := fmt.Sprintf("%s at %s, database %d", kind, strings.Join(o.Addrs, " "), o.DB)
		for name, value := range map[string]string{
			"\nmaster ": o.MasterName, "\nlogin ": o.Username + ":" + o.Password, "\nlogin of sentinels ": o.SentinelUsername + ":" + o.SentinelPassword,
		} {
			require.Equal(t, kind == "cluster", o.IsClusterMode, given)
			if value != "" && value != ":" {
				out += name + value
			}
		}
		if o.TLSConfig != nil {
			out += "\nTLS for " + o.TLSConfig.ServerName
		}
		lines := strings.Split(out, "\n")
		slices.Sort(lines[1:])
		o.Addrs, o.DB, o.MasterName, o.Username, o.Password, o.SentinelUsername, o.SentinelPassword, o.TLSConfig, o.IsClusterMode = nil, 0, "", "", "", "", "", nil, false
		require.Zero(t, o, "an option that is not shown")
		return strings.Join(lines, "\n")
	})
}
