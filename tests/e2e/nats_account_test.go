package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// accountsInDeploy are those of deploy/nats-accounts.conf: one has the streams, the other one counts them.
func accountsInDeploy(t *testing.T) string {
	t.Helper()
	config, err := os.ReadFile("../../deploy/nats-accounts.conf")
	require.NoError(t, err)
	return strings.ReplaceAll(string(config), "PASSWORD", secret)
}

// configured starts a server with the accounts and users of a configuration.
func configured(t *testing.T, config string) *stack.NATSEmbedded {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	return stack.NATS(t, func(o *server.Options) {
		parsed, err := server.ProcessConfigFile(path)
		require.NoError(t, err)
		o.Accounts, o.Users, o.Nkeys = parsed.Accounts, parsed.Users, parsed.Nkeys
	})
}

// The streams belong to another account, which exports its JetStream to this one.
func TestStreamsOfAnotherAccount(t *testing.T) {
	t.Parallel()
	n := configured(t, accountsInDeploy(t))
	ownNATS{
		env: []string{"NATS_URL=" + n.URL(), "NATS_USER=tally", "NATS_PASSWORD=" + secret,
			"NATS_JS_API_PREFIX=JS.streams.API", "NATS_INBOX_PREFIX=_INBOX_tallyroll"},
		near:  n.Conn(nats.UserInfo("tally", secret)),
		owner: jetStreamOf(t, n.Conn(nats.UserInfo("streams", secret))),
	}.countsExactly(t)
}

// Without the import of the delivery subjects no message comes. The worker then reads nothing, and says
// what is missing.
func TestDeliverySubjectsThatAreNotImported(t *testing.T) {
	t.Parallel()
	config := strings.Replace(accountsInDeploy(t), `{stream: {account: STREAMS, subject: "_INBOX_tallyroll.>"}}`, "", 1)
	n, redis := configured(t, config), stack.Redis(t)
	ingest := stack.Ingest(t, n, redis, stack.NoWait, "NATS_USER=tally", "NATS_PASSWORD="+secret,
		"NATS_JS_API_PREFIX=JS.streams.API", "NATS_INBOX_PREFIX=_INBOX_tallyroll")
	ingest.WaitForLog("does its account import the delivery subjects below _INBOX_tallyroll (NATS_INBOX_PREFIX)?")
}
