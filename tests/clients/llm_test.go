package clients_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// The proxies in front of a language model never let it be used beyond the limit, with 50 clients at a time
// whose requests cost less than they take. In the end the limits have exactly what the model was used.
func TestProxiesKeepToABudgetOfTokens(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	file := filepath.Join(t.TempDir(), "limits.yml")
	const most, week = 60_000, 1_000_000
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "limits:\n  - {name: tokens-5h, window: 5h, max: %d}\n  - {name: tokens-7d, window: 7d, max: %d}\n", most, week), 0o600))
	query, demo := stack.Query(t, redis, "QUERY_LIMITS_FILE="+file), stack.Query(t, redis, demoLimits(t))
	other := filepath.Join(t.TempDir(), "other.yml")
	require.NoError(t, os.WriteFile(other, []byte("limits: [{name: other, window: 5h, max: 1}]"), 0o600))
	without := stack.Query(t, redis, "QUERY_LIMITS_FILE="+other)
	for _, the := range []struct{ name, program, path string }{
		{"go", "go", "go/llmproxy"}, {"python", "python3", "python/llmproxy.py"},
	} {
		t.Run(the.name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(the.program); err != nil {
				t.Skip("SKIPPED: " + the.program + " is missing")
			}
			var used atomic.Int64
			model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var question struct {
					Most int64 `json:"max_tokens"`
					N    int64
				}
				body, _ := io.ReadAll(r.Body)
				if r.URL.Path == "/v1/free" {
					fmt.Fprintln(w, `{"usage":{"total_tokens":0}}`)
					return
				}
				if r.URL.Path == "/v1/stream" {
					fmt.Fprintln(w, "data: no usage")
					return
				}
				if json.Unmarshal(body, &question) != nil || r.URL.Path != "/v1/chat" {
					w.WriteHeader(http.StatusTeapot)
					return
				}
				cost := 1 + rand.Int64N(question.Most*question.N)
				if sum := used.Add(cost); sum > most {
					t.Errorf("%d tokens were used, and %d are allowed", sum, most)
				}
				fmt.Fprintf(w, `{"usage":{"total_tokens":%d}}`, cost)
			}))
			defer model.Close()
			url, _, errs := startExample(t, the.path, "TALLYROLL_URL="+query.URL(), "UPSTREAM="+model.URL)
			var refused atomic.Int64
			var clients sync.WaitGroup
			for range 50 {
				clients.Go(func() {
					for range 8 {
						request, _ := http.NewRequest(http.MethodPost, url+"v1/chat", strings.NewReader(`{"max_tokens":250,"n":4}`))
						request.Header.Set("Authorization", "Bearer "+the.name)
						answer, err := http.DefaultClient.Do(request)
						if err != nil {
							t.Error(err)
							return
						}
						answer.Body.Close()
						switch answer.StatusCode {
						case http.StatusOK:
						case http.StatusTooManyRequests:
							if answer.Header.Get("Retry-After") == "" {
								t.Error("429 without Retry-After")
							}
							refused.Add(1)
						default:
							t.Errorf("%s: %s", answer.Status, errs)
						}
					}
				})
			}
			clients.Wait()
			key := fmt.Sprintf("%x", sha256.Sum256([]byte("Bearer "+the.name)))
			for name, limit := range map[string]int64{"tokens-5h": most, "tokens-7d": week} {
				status, answer, err := stack.Do(http.MethodGet, query.URL()+"/v1/limit?limit="+name+"&key="+key, nil)
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, status)
				require.Contains(t, string(answer), fmt.Sprintf(`"remaining":%d,`, limit-used.Load()))
			}
			// An answer without usage costs what was taken.
			const question = `{"max_tokens":1000}`
			ask := func(path, caller, question string) int {
				request, _ := http.NewRequest(http.MethodPost, url+path, strings.NewReader(question))
				request.Header.Set("Authorization", caller)
				answer, err := http.DefaultClient.Do(request)
				require.NoError(t, err)
				answer.Body.Close()
				return answer.StatusCode
			}
			require.Equal(t, http.StatusOK, ask("v1/stream", "stream "+the.name, question))
			key = fmt.Sprintf("%x", sha256.Sum256([]byte("stream "+the.name)))
			_, left, err := stack.Do(http.MethodGet, query.URL()+"/v1/limit?limit=tokens-5h&key="+key, nil)
			require.NoError(t, err)
			require.Contains(t, string(left), fmt.Sprintf(`"remaining":%d,`, most-1000-len(question)))
			if refused.Load() == 0 {
				t.Error("no request was refused")
			}
			// Answers that cost nothing leave the budget, and numbers that could give some back are refused.
			for question, want := range map[string]int{
				`{"max_tokens":1000,"n":2}`: http.StatusOK, `{"max_tokens":1000,"n":null}`: http.StatusOK,
				`{"max_tokens":-600000}`: http.StatusBadRequest, `{"max_tokens":0}`: http.StatusBadRequest, `{"max_tokens":1,"n":-600000}`: http.StatusBadRequest,
				`{"max_tokens":4294967296,"n":4294967296}`: http.StatusBadRequest, `{"max_tokens":-1,"n":-60000}`: http.StatusBadRequest, `{"n":1}`: http.StatusBadRequest,
			} {
				require.Equal(t, want, ask("v1/free", "free "+the.name, question), question)
			}
			key = fmt.Sprintf("%x", sha256.Sum256([]byte("free "+the.name)))
			_, left, err = stack.Do(http.MethodGet, query.URL()+"/v1/limit?limit=tokens-5h&key="+key, nil)
			require.NoError(t, err)
			require.Contains(t, string(left), fmt.Sprintf(`"remaining":%d,`, most))
			// The demo has these limits. Without them nothing is wrong with the request, and the caller sees what is.
			for tallyroll, want := range map[string]int{demo.URL(): http.StatusOK, without.URL(): http.StatusServiceUnavailable} {
				url, _, errs := startExample(t, the.path, "TALLYROLL_URL="+tallyroll, "UPSTREAM="+model.URL)
				status, answer, err := stack.Do(http.MethodPost, url+"v1/stream", map[string]any{"max_tokens": 1000})
				require.NoError(t, err)
				require.Equal(t, want, status, "%s", answer)
				if want != http.StatusOK {
					require.Contains(t, string(answer), "tokens-5h")
					stack.Eventually(t, "the log to name the limit", func() (bool, string) {
						return strings.Contains(errs.String(), "tokens-5h"), errs.String()
					})
				}
			}
			t.Logf("%d tokens of %d were used, %d requests refused", used.Load(), most, refused.Load())
		})
	}
}

// The callback for LiteLLM keeps a key to its budget with many calls at a time, whatever they cost in the
// end, and refuses them if the budget cannot be asked.
func TestCallbackOfLiteLLMKeepsToABudget(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	file := filepath.Join(t.TempDir(), "limits.yml")
	const most = 5_000_000
	text := fmt.Appendf(nil, "limits: [{name: budget, window: 30d, max: %d}]", most)
	require.NoError(t, os.WriteFile(file, text, 0o600))
	query := stack.Query(t, stack.Redis(t), "QUERY_LIMITS_FILE="+file)
	call := func(clients int, env ...string) (spent int64, refused map[int]int) {
		cmd := exec.Command("python3", "testdata/litellm/calls.py", strconv.Itoa(clients))
		cmd.Env = append(cmd.Environ(), append(env, "PYTHONPATH="+filepath.Join(examplesDir, "python"),
			"PYTHONDONTWRITEBYTECODE=1")...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		require.NoError(t, err)
		var printed struct {
			Spent   int64
			Refused map[int]int
		}
		require.NoError(t, json.Unmarshal(out, &printed))
		return printed.Spent, printed.Refused
	}
	spent, refused := call(50, "TALLYROLL_URL="+query.URL())
	require.LessOrEqual(t, spent, int64(most))
	require.Positive(t, refused[http.StatusTooManyRequests])
	require.Len(t, refused, 1)
	_, answer, err := stack.Do(http.MethodGet, query.URL()+"/v1/limit?limit=budget&key=key", nil)
	require.NoError(t, err)
	require.Contains(t, string(answer), fmt.Sprintf(`"remaining":%d,`, most-spent))

	for _, env := range []string{
		"TALLYROLL_URL=" + fmt.Sprintf("http://127.0.0.1:%d", stack.FreePort(t)), "BUDGET=other",
	} {
		spent, refused = call(1, "TALLYROLL_URL="+query.URL(), env)
		require.Zero(t, spent, env)
		require.Equal(t, map[int]int{http.StatusServiceUnavailable: 8}, refused, env)
	}
}
