package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"tallyroll/tests/stack"
)

// accountsInDocs are the accounts of docs/operations.md: one has the streams, the other one counts them.
func accountsInDocs(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```\naccounts {")
	config, _, ends := strings.Cut(rest, "```")
	if !found || !ends {
		t.Fatal("docs/operations.md has no accounts")
	}
	return "accounts {" + strings.ReplaceAll(config, "PASSWORD", secret)
}

// configured starts a server with the accounts and users of a configuration.
func configured(t *testing.T, config string) *stack.NATSEmbedded {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return stack.NATS(t, func(o *server.Options) {
		parsed, err := server.ProcessConfigFile(path)
		if err != nil {
			t.Fatal(err)
		}
		o.Accounts, o.Users, o.Nkeys = parsed.Accounts, parsed.Users, parsed.Nkeys
	})
}

// The streams belong to another account, which exports its JetStream to this one.
func TestStreamsOfAnotherAccount(t *testing.T) {
	t.Parallel()
	n := configured(t, accountsInDocs(t))
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
	config := strings.Replace(accountsInDocs(t), `{stream: {account: STREAMS, subject: "_INBOX_tallyroll.>"}}`, "", 1)
	n, redis := configured(t, config), stack.Redis(t)
	ingest := stack.Ingest(t, n, redis, stack.NoWait, "NATS_USER=tally", "NATS_PASSWORD="+secret,
		"NATS_JS_API_PREFIX=JS.streams.API", "NATS_INBOX_PREFIX=_INBOX_tallyroll")
	ingest.WaitForLog("does its account import the delivery subjects below _INBOX_tallyroll (NATS_INBOX_PREFIX)?")
}
