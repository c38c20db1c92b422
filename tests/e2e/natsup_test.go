package e2e_test

import (
	"fmt"
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

var natsUp = regexp.MustCompile(`(?m)^tallyroll_nats_up (\d)$`)

// ingest, query and collect show whether NATS answers: also one that they have not reached yet, and one that
// hangs. A query without NATS shows nothing.
func TestProgramsShowWhetherNATSAnswers(t *testing.T) {
	t.Parallel()
	nats, redis := stack.NATSProcess(t), stack.Redis(t)
	nats.Stop()
	at := "NATS_URL=" + nats.URL()
	programs := []*stack.Service{stack.Ingest(t, nats, redis, stack.NoWait), stack.Collect(t, nats, stack.NoWait), stack.Query(t, redis, at)}
	shown := func(p *stack.Service) string {
		status, body, err := stack.Do(http.MethodGet, p.URL()+"/metrics", nil)
		if err != nil || status != http.StatusOK {
			return fmt.Sprint(status, err)
		}
		return fmt.Sprint(natsUp.FindAllString(string(body), -1))
	}
	eventually := func(want string) {
		t.Helper()
		for _, p := range programs {
			stack.Eventually(t, want, func() (bool, string) {
				got := shown(p)
				return got == want, got
			})
		}
	}
	const up, down = "[tallyroll_nats_up 1]", "[tallyroll_nats_up 0]"
	eventually(down)
	nats.Start()
	eventually(up)
	nats.Pause()
	eventually(down)
	nats.Resume()
	eventually(up)
	require.Equal(t, "[]", shown(stack.Query(t, redis)))
}
