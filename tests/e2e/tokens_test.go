package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// The built programs read their files of tokens again: at SIGHUP, and when the file has changed.
func TestTokensAreReloaded(t *testing.T) {
	t.Parallel()
	redis, nats := stack.Redis(t), stack.NATS(t)
	for name, run := range map[string]func(env string) *stack.Service{
		"QUERY": func(env string) *stack.Service { return stack.Query(t, redis, stack.NoWait, env, "QUERY_TOKENS=root") },
		"PROMQL": func(env string) *stack.Service {
			return stack.PromQL(t, redis, stack.NoWait, env, "PROMQL_TOKENS=root")
		},
		"COLLECT": func(env string) *stack.Service { return stack.Collect(t, nats, stack.NoWait, env) },
	} {
		file := filepath.Join(t.TempDir(), "tokens.yml")
		tokens := func(name string) string {
			return fmt.Sprintf("tokens: [{name: shop, sha256: %x, may: [read, count], prefixes: [shop.]}]\n", sha256.Sum256([]byte(name)))
		}
		write(t, file, tokens("hunter1"))
		service := run(name + "_TOKENS_FILE=" + file)
		service.WaitForLog(`"message":"started"`) // it listens, and has nothing to answer from
		path := map[string]string{"QUERY": "/v1/nothing", "PROMQL": "/api/v1/nothing", "COLLECT": "/v1/hits"}[name]
		knows := func(token string) bool {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, service.URL()+path, nil)
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			resp.Body.Close()
			return resp.StatusCode != http.StatusUnauthorized
		}
		if !knows("hunter1") || knows("hunter2") || name != "COLLECT" && !knows("root") {
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
}

// A mistake ends a program before it listens, and tells no secret.
func TestBadTokensEndPrograms(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.yml")
	write(t, file, "tokens:\n- name: a\n  hunter2: x\n")
	for program, setting := range map[string]string{"query": "QUERY_TOKENS_FILE", "promql": "PROMQL_TOKENS_FILE", "collect": "COLLECT_TOKENS_FILE"} {
		for value, want := range map[string]string{
			file:                                   program + ": " + setting + ": " + file + ": line 3: unknown field: allowed is name, sha256, may",
			"tokens: [{name: a, sha256: hunter2}]": "no such file",
			file + ".no":                           "no such file",
		} {
			code, out := ends(t, program, nil, setting+"="+value)
			if code != 2 || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 || strings.Contains(out, "hunter") {
				t.Errorf("%s=%s: code %d, %s", setting, value, code, out)
			}
		}
	}
}
