package boot

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNATSServers(t *testing.T) {
	for text, want := range map[string]struct{ servers, hosts string }{
		"nats://127.0.0.1:4222":            {"nats://127.0.0.1:4222", "127.0.0.1:4222"},
		"h":                                {"nats://h", "h"},
		"h:1, i:2":                         {"nats://h:1,nats://i:2", "h:1,i:2"},
		"nats://u:hunter2@h:1/":            {"nats://u:hunter2@h:1/", "h:1"},
		"nats://hunter2@h":                 {"nats://hunter2@h", "h"}, // a token
		"tls://u:hunter2%2C%40@h:1,h:2":    {"tls://u:hunter2%2C%40@h:1,nats://h:2", "h:1,h:2"},
		"wss://u:hunter2@h/nats,ws://i:80": {"wss://u:hunter2@h/nats,ws://i:80", "h,i:80"},
		"nats://[::1]:4222":                {"nats://[::1]:4222", "[::1]:4222"},
	} {
		t.Run(text, func(t *testing.T) {
			var s NATSServers
			require.NoError(t, s.UnmarshalText([]byte(text)))
			if *s.text != want.servers || s.String() != want.hosts || !s.Set() {
				t.Errorf("%s at %s, want %+v", *s.text, s, want)
			}
			marshalled, _ := json.Marshal(struct{ URL NATSServers }{s})
			for _, printed := range []string{
				fmt.Sprint(s), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s), fmt.Sprintf("%q", s), fmt.Sprintf("%+v", struct{ url NATSServers }{s}), string(marshalled),
			} {
				if strings.Contains(printed, "hunter2") {
					t.Errorf("it appears in %s", printed)
				}
			}
		})
	}
}

func TestBadNATSServers(t *testing.T) {
	for text, says := range map[string]string{
		"":                                   "no host",
		"h,":                                 "no host",
		"http://user:hunter2@h":              "not http://",
		"nats://h,redis://hunter2@h":         "not redis://",
		"user:hunter2@h":                     "begins with nats://",
		"hunter2 is://x":                     "not a URL",
		"nats://user:hunter2%@h":             "not a URL",
		"nats://user:hunter2/x@h":            "not a URL",
		"nats://user:12/hunter2@h":           "%2F",
		"nats://user:12?hunter2@h":           "%3F",
		"nats://user:12#hunter2@h":           "%23",
		"nats://user:12,hunter2@h":           "%2C",
		"nats://user:12,hunter2://x@h":       "%2C",
		"ws://user:12/hunter2@h":             "%2F",
		"nats://h/path":                      "nothing follows",
		"nats://user:hunter2@":               "no host",
		"nats://user:hunter2@h:65536":        "65535",
		"nats://user:hunter2@h:0":            "65535",
		"nats://h:1,wss://user:hunter2@h:44": "not all",
	} {
		t.Run(text, func(t *testing.T) {
			var s NATSServers
			err := s.UnmarshalText([]byte(text))
			if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "tls://") {
				t.Errorf("%v; want it to say %q and what is allowed", err, says)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") || s.Set() {
				t.Errorf("%v, set %v", err, s.Set())
			}
		})
	}
}
