package source

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// importing is what reading needs of another account; docs/install.md has all that the programs need.
const importing = `
accounts {
  STREAMS {
    jetstream: enabled, users: [{user: streams, password: x}]
    exports: [{service: "$JS.API.>", response_type: stream}, {service: "$JS.FC.>"}, {stream: "_INBOX_far.>"}]
  }
  FAR {
    users: [{user: far, password: x}]
    imports: [
      {service: {account: STREAMS, subject: "$JS.API.>"}, to: "JS.streams.API.>"}
      {service: {account: STREAMS, subject: "$JS.FC.>"}}, {stream: {account: STREAMS, subject: "_INBOX_far.>"}}
    ]
  }
}`

// Across accounts, messages are pushed: empty ones too, in order, and not more at once than the server's flow
// control allows.
func TestMessagesAcrossAccountsComeInOrder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(path, []byte(importing), 0o600))
	n := stack.NATS(t, func(o *server.Options) {
		parsed, err := server.ProcessConfigFile(path)
		require.NoError(t, err)
		o.Accounts, o.Users = parsed.Accounts, parsed.Users
	})
	owner, err := jetstream.New(n.Conn(nats.UserInfo("streams", "x")))
	require.NoError(t, err)
	far, err := jetstream.NewWithAPIPrefix(n.Conn(nats.UserInfo("far", "x"), nats.CustomInboxPrefix("_INBOX_far")), "JS.streams.API")
	require.NoError(t, err)
	r := startFeed(t, far, func(*pullRequest) {})
	const small, large, size, most = 100, 320, 128 << 10, 34 << 20 // the server's bound is 32 MiB, and one request more
	for i := range small + large {
		body := make([]byte, size)
		if i < small {
			body = body[:i%2]
		}
		if _, err := owner.Publish(t.Context(), "hits.a", body); err != nil {
			t.Fatal(err)
		}
	}
	r.expect(1, small)
	came, since := -1, time.Now()
	stack.Eventually(t, "the server to wait for the feed", func() (bool, string) {
		_, bytes, err := r.feed.subscription.Pending()
		if err != nil || bytes > most {
			t.Fatalf("%d bytes are under way, %v", bytes, err)
		}
		if bytes/size != came { // heartbeats go on
			came, since = bytes/size, time.Now()
		}
		return time.Since(since) > 2*time.Second, fmt.Sprintf("%d bytes", bytes)
	})
	r.expect(small+1, large)
}
