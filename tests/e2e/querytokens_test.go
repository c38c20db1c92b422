package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tallyroll/tests/stack"
)

// The built query and promql read their files of tokens again: at SIGHUP, and when the file has changed.
func TestQueryTokensAreReloaded(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	for name, run := range map[string]func(env string) *stack.Service{
		"QUERY": func(env string) *stack.Service { return stack.Query(t, redis, stack.NoWait, env, "QUERY_TOKENS=root") },
		"PROMQL": func(env string) *stack.Service {
			return stack.PromQL(t, redis, stack.NoWait, env, "PROMQL_TOKENS=root")
		},
	} {
		file := filepath.Join(t.TempDir(), "tokens.yml")
		tokens := func(name string) string {
			return fmt.Sprintf("tokens: [{name: shop, sha256: %x, may: [read], prefixes: [shop.]}]\n", sha256.Sum256([]byte(name)))
		}
		write(t, file, tokens("hunter1"))
		service := run(name + "_TOKENS_FILE=" + file)
		service.WaitForLog(`"message":"started"`) // it listens, and has nothing to answer from
		path := map[string]string{"QUERY": "/v1/nothing", "PROMQL": "/api/v1/metadata"}[name]
		knows := func(token string) bool {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, service.URL()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return resp.StatusCode != http.StatusUnauthorized
		}
		if !knows("hunter1") || knows("hunter2") || !knows("root") {
			t.Errorf("%s knows other tokens", name)
		}
		write(t, file, tokens("hunter2"))
		service.Signal(syscall.SIGHUP)
		stack.Eventually(t, name+" to reload", func() (bool, string) { return knows("hunter2") && !knows("hunter1"), service.Logs() })
		write(t, file, tokens("hunter3"))
		stack.Eventually(t, name+" to see the change", func() (bool, string) { return knows("hunter3") && !knows("hunter2"), service.Logs() })
		write(t, file, "tokens: [{name: shop, sha256: hunter4, may: [read]}]\n")
		service.WaitForLog("tokens not reloaded")
		if logs := service.Logs(); !knows("hunter3") || !strings.Contains(logs, file+": line 1: sha256: allowed are the 64") || strings.Contains(logs, "hunter") {
			t.Errorf("%s after a bad file: %s", name, logs)
		}
	}
	code, out := ends(t, "query", nil, "QUERY_TOKENS_FILE=tokens: [{name: a, sha256: hunter2}]")
	if code != 2 || !strings.Contains(out, "QUERY_TOKENS_FILE: ") || strings.Contains(out, "hunter") {
		t.Errorf("exit %d: %s", code, out)
	}
}
