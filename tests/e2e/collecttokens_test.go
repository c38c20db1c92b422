package e2e_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tallyroll/tests/stack"
)

// statusFor posts a hit with a token.
func statusFor(t *testing.T, collect *stack.Service, token string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, collect.URL()+"/v1/hits", strings.NewReader(`{"key":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// SIGHUP gives collect other tokens. A bad file changes nothing.
func TestTokensAreReloaded(t *testing.T) {
	t.Parallel()
	s := start(t)
	file := filepath.Join(t.TempDir(), "tokens.yml")
	write(t, file, "tokens: [{name: a, token: hunter1}]\n")
	collect := stack.Collect(t, s.nats, "COLLECT_TOKENS_FILE="+file)
	if one, two := statusFor(t, collect, "hunter1"), statusFor(t, collect, "hunter2"); one != 202 || two != 401 {
		t.Fatalf("status %d and %d", one, two)
	}
	write(t, file, "tokens: [{name: a, token: hunter2}]\n")
	collect.Signal(syscall.SIGHUP)
	collect.WaitForLog(`"message":"tokens reloaded"`)
	if one, two := statusFor(t, collect, "hunter1"), statusFor(t, collect, "hunter2"); one != 401 || two != 202 {
		t.Errorf("after a reload: status %d and %d", one, two)
	}
	write(t, file, "tokens:\n- name: a\n  token: hunter3 x\n")
	collect.Signal(syscall.SIGHUP)
	collect.WaitForLog("tokens not reloaded")
	if two := statusFor(t, collect, "hunter2"); two != 202 {
		t.Errorf("after a bad file: status %d", two)
	}
	if _, text, err := stack.Do(http.MethodGet, collect.URL()+"/metrics", nil); err != nil || !hasAll(string(text), []string{`tallyroll_last_reload_successful{what="tokens"} 0`, `tallyroll_reloads_total{result="failed",what="tokens"} 1`, `tallyroll_reloads_total{result="ok",what="tokens"} 1`}) {
		t.Errorf("after a bad file, metrics say %s %v", linesWith(string(text), "reload"), err)
	}
	if logs := collect.Logs(); !strings.Contains(logs, file+": line 3: token: ") || strings.Contains(logs, "hunter") {
		t.Errorf("the log says %s", logs)
	}

	without := stack.Collect(t, s.nats, "COLLECT_ORIGINS=https://shop.example.com")
	without.WaitForLog("COLLECT_ORIGINS has no effect")
	without.Signal(syscall.SIGHUP)
	without.WaitForLog("nothing to reload")
	if status := statusFor(t, without, ""); status != 202 {
		t.Errorf("without a file: status %d", status)
	}
}

// A mistake ends the program before it listens, and tells no secret.
func TestBadTokensEndCollect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "tokens.yml")
	write(t, file, "tokens:\n- name: a\n  token: hunter2 x\n")
	misplaced := make(map[string]string)
	for name, text := range map[string]string{"field": "tokens:\n- name: a\n  hunter2: x\n", "top": "hunter2:\n- name: a\n", "name": "tokens:\n- name: hunter2!\n  token: x\n"} {
		misplaced[name] = filepath.Join(dir, name+".yml")
		write(t, misplaced[name], text)
	}
	for env, want := range map[string]string{
		"COLLECT_TOKENS_FILE=" + misplaced["field"]:               "line 3: unknown field: allowed is name, token",
		"COLLECT_TOKENS_FILE=" + misplaced["top"]:                 "line 1: unknown field: allowed is tokens",
		"COLLECT_TOKENS_FILE=" + misplaced["name"]:                "line 2: name: allowed are",
		"COLLECT_TOKENS_FILE=tokens: [{name: a, token: hunter2}]": "no such file",
		"COLLECT_TOKENS_FILE=" + file:                             "collect: COLLECT_TOKENS_FILE: " + file + ": line 3: token: ",
		"COLLECT_TOKENS_FILE=" + file + ".no":                     "no such file",
		"COLLECT_ORIGINS=*":                                       "any page of the web",
		"COLLECT_ORIGINS=shop.example.com":                        "without a path",
		"COLLECT_BEACON_MAX_N=0":                                  "from 1 to",
	} {
		code, out := ends(t, "collect", nil, env)
		if code != 2 || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 || strings.Contains(out, "hunter") {
			t.Errorf("%s: code %d, %s", env, code, out)
		}
	}
}
