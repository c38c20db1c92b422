package boot

import (
	"reflect"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestRedisURL(t *testing.T) {
	for _, c := range []struct {
		url  string
		want redis.UniversalOptions
		tls  string // whose certificate is demanded
		kind string
	}{
		{"redis://127.0.0.1:6379/0", redis.UniversalOptions{Addrs: []string{"127.0.0.1:6379"}}, "", "single"},
		{"redis://h", redis.UniversalOptions{Addrs: []string{"h:6379"}}, "", "single"},
		{"redis://:p%40w@h:1/3", redis.UniversalOptions{Addrs: []string{"h:1"}, Password: "p@w", DB: 3}, "", "single"},
		{"rediss://u:pw@[::1]:6380", redis.UniversalOptions{Addrs: []string{"[::1]:6380"}, Username: "u", Password: "pw"}, "::1", "single"},
		{"redis+cluster://h:1", redis.UniversalOptions{Addrs: []string{"h:1"}, IsClusterMode: true}, "", "cluster"},
		{"rediss+cluster://u:pw@a:1/0?addr=b:2&addr=c:3", redis.UniversalOptions{Addrs: []string{"a:1", "b:2", "c:3"}, Username: "u", Password: "pw", IsClusterMode: true}, "a", "cluster"},
		{"redis+cluster://h:1/2", redis.UniversalOptions{Addrs: []string{"h:1"}, IsClusterMode: true, DB: 2}, "", "cluster"},
		{"redis+sentinel://a?master_name=m", redis.UniversalOptions{Addrs: []string{"a:26379"}, MasterName: "m"}, "", "sentinel"},
		{"rediss+sentinel://u:pw@a:1/2?master_name=m&addr=b:2&sentinel_username=su&sentinel_password=spw",
			redis.UniversalOptions{Addrs: []string{"a:1", "b:2"}, Username: "u", Password: "pw", DB: 2, MasterName: "m", SentinelUsername: "su", SentinelPassword: "spw"}, "a", "sentinel"},
	} {
		t.Run(c.url, func(t *testing.T) {
			var u RedisURL
			require.NoError(t, u.UnmarshalText([]byte(c.url)))
			got := *u.options
			name := ""
			if got.TLSConfig != nil {
				name = got.TLSConfig.ServerName
			}
			if name != c.tls {
				t.Errorf("TLS for %q, want %q", name, c.tls)
			}
			got.TLSConfig = nil
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			client := Redis{URL: u}.Client()
			defer client.Close()
			kind := "single"
			switch c := client.(type) {
			case *redis.ClusterClient:
				kind = "cluster"
			case *redis.Client:
				if c.Options().Addr == "FailoverClient" {
					kind = "sentinel"
				}
			}
			if kind != c.kind {
				t.Errorf("a client for a %s, want a %s", kind, c.kind)
			}
		})
	}
}

func TestBadRedisURL(t *testing.T) {
	for url, says := range map[string]string{
		"":                                                   "no scheme",
		"hunter2:6379":                                       "no scheme",
		"redis://u:1?hunter2@h":                              "%3F",
		"redis://u:1#hunter2@h":                              "%23",
		"redis+cluster://h?addr=u:hunter2@b:1":               "not host:port",
		"redis+cluster://h?addr=hunter2@b:1":                 "not host:port",
		"redis+cluster://h?addr=b/hunter2:1":                 "not host:port",
		"redis+cluster://h?addr=b:hunter2":                   "not host:port",
		"redis+cluster://h?addr=b:1&addr=x:hunter2@c:1":      "not host:port",
		"redis+sentinel://h?master_name=m&addr=%20hunter2:1": "not host:port",
		"http://user:hunter2@localhost":                      "not http://",
		"redis://h:65536":                                    "from 1 to 65535",
		"redis://user,hunter2":                               "no name and no address",
		"redis+other://h":                                    "not redis+other://",
		"redis+://h":                                         "not redis+://",
		"rediss+cluster+sentinel://h":                        "not rediss",
		"redis://user:hunter2@":                              "names no host",
		"redis://h/x":                                        "whole number",
		"redis://h?addr=b:1":                                 "are: none",
		"redis+cluster://h?read_only=1":                      "are: addr",
		"redis+cluster://h?addr=b":                           "not host:port",
		"redis+sentinel://h":                                 "no master_name",
		"redis://u:hunter2@h:port":                           "not a URL",
		"redis://h?a=%zz":                                    "cannot be read",
		"redis://u:%zzhunter2@h":                             "not a URL",
	} {
		t.Run(url, func(t *testing.T) {
			var u RedisURL
			err := u.UnmarshalText([]byte(url))
			if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "redis+sentinel://") {
				t.Errorf("%v; want it to say %q and what is allowed", err, says)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v quotes the password", err)
			}
		})
	}
}

// What counts twice when it is repeated is never repeated by a client.
func TestNoClientRepeatsCounting(t *testing.T) {
	for _, url := range []string{"redis://h", "redis+cluster://h", "redis+sentinel://h?master_name=m"} {
		var u RedisURL
		require.NoError(t, u.UnmarshalText([]byte(url)))
		client := Redis{URL: u}.Client()
		defer client.Close()
		switch c := client.(type) {
		case *redis.Client:
			if n := c.Options().MaxRetries; n != 0 {
				t.Errorf("%s: %d retries", url, n)
			}
		case *redis.ClusterClient: // of its nodes
			node := redis.NewClient(&redis.Options{MaxRetries: c.Options().MaxRetries})
			defer node.Close()
			if n := node.Options().MaxRetries; n != 0 || c.Options().ReadOnly {
				t.Errorf("%s: a node has %d retries, reads from replicas: %v", url, n, c.Options().ReadOnly)
			}
		}
	}
}
