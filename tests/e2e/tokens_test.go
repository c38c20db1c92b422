package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"syscall"
	"testing"

	"tallyroll/tests/stack"
)

// The built programs read their files of tokens again.
func TestTokensAreReloadedIfTheirFileChanges(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	tokens := func(token string) string {
		return fmt.Sprintf("tokens: [{name: shop, sha256: %x, may: [read, count], prefixes: [shop.]}]\n", sha256.Sum256([]byte(token)))
	}
	for name, c := range map[string]struct {
		run  func(env ...string) *stack.Service
		path string
		root bool // it has another token in its settings
	}{
		"QUERY":   {func(env ...string) *stack.Service { return stack.Query(t, s.redis, env...) }, "/v1/nothing", true},
		"PROMQL":  {func(env ...string) *stack.Service { return stack.PromQL(t, s.redis, env...) }, "/api/v1/nothing", true},
		"COLLECT": {func(env ...string) *stack.Service { return stack.Collect(t, s.nats, env...) }, "/v1/hits", false},
	} {
		tokensFile := file(t, "tokens.yml", tokens("hunter1"))
		env := []string{stack.NoWait, name + "_TOKENS_FILE=" + tokensFile}
		if c.root {
			env = append(env, name+"_TOKENS=root")
		}
		service := c.run(env...)
		service.WaitForLog(`"message":"started"`) // it listens, and has nothing to answer from
		knows := func(token string) bool {
			status, _ := request(http.DefaultClient, http.MethodPost, service.URL()+c.path, "", "Authorization", "Bearer "+token)
			return status != http.StatusUnauthorized
		}
		if !knows("hunter1") || knows("hunter2") || c.root != knows("root") {
			t.Errorf("%s knows other tokens", name)
		}
		write(t, tokensFile, tokens("hunter2"))
		service.Signal(syscall.SIGHUP)
		stack.Eventually(t, name+" to reload", func() (bool, string) { return knows("hunter2") && !knows("hunter1"), service.Logs() })
	}
}
