package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

const secret = "hunter2" // a part of every password and token of these tests

// With a secret in every setting that takes one, in a file or given as it is, no program reveals it: neither
// in its log, its answers and metrics, nor in the list of the machine's processes.
func TestNoProgramRevealsItsSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	nats, redis := stack.NATS(t, allowOnly("user", secret)), stack.Redis(t)
	stack.NewUser(t, redis, "user", secret, "allkeys", "allchannels", "allcommands")
	natsAt := strings.TrimPrefix(nats.URL(), "nats://")
	inFile := func(key, value string) string {
		write(t, filepath.Join(dir, key), value+"\n")
		return key + "_FILE=" + filepath.Join(dir, key)
	}
	var services []*stack.Service
	for _, env := range [][]string{
		{inFile("NATS_URL", "nats://user:"+secret+"@"+natsAt), inFile("REDIS_URL", "redis://user:"+secret+"@"+redis.Addr())},
		{"NATS_PASSWORD=" + secret, "REDIS_PASSWORD=" + secret, "PROMQL_TOKENS=" + secret, "QUERY_TOKENS=" + secret,
			"NATS_USER=user", "NATS_URL=" + natsAt, "REDIS_URL=redis://user@" + redis.Addr()},
	} {
		env = append(env, "LOG_LEVEL=debug")
		services = append(services, stack.Ingest(t, nil, nil, env...), stack.Query(t, nil, env...), stack.Collect(t, nil, env...), stack.PromQL(t, nil, env...))
		for program, args := range map[string][]string{"publish": {"--count", "3", "--counters", "1"}, "redrive": {"--dry-run"}, "audit": nil} {
			if code, out := runToEnd(t, program, args, env...); code != 0 && program != "redrive" || strings.Contains(out, secret) {
				t.Errorf("%s ends with %d and %q", program, code, out)
			}
		}
	}
	wrong := []string{"NATS_URL=nats://user:" + secret + "x@" + natsAt, "REDIS_URL=redis://user:" + secret + "@" + redis.Addr()}
	for program, args := range map[string][]string{"ingest": nil, "publish": {"--count", "1"}} {
		code, out := runToEnd(t, program, args, append(wrong, "INGEST_ADDR=127.0.0.1:0")...)
		if code != 2 || !strings.Contains(out, "NATS at "+natsAt+" refused the credentials") || !strings.Contains(out, "NATS_URL") || strings.Contains(out, secret) {
			t.Errorf("%s with refused credentials ends with %d and %q", program, code, out)
		}
	}

	for _, key := range []string{"NATS_URL", "REDIS_URL"} {
		inFile(key, secret+" is no longer\nwhat was there")
	}
	require.NoError(t, redis.Client().Do(t.Context(), "client", "kill", "user", "user").Err())
	nats.Reload(allowOnly("user", "other")) // cuts them, and refuses them
	for _, s := range services {
		if strings.Contains(s.Logs(), `"nats"`) || strings.Contains(s.Logs(), "NATS") {
			s.WaitForLog("NATS lost")
		}
	}
	nats.Reload(allowOnly("user", secret))
	for _, s := range services {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.PID())) // on Linux
		outputs := map[string]string{"its command line": string(cmdline)}
		for _, path := range []string{
			"/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/none",
			"/v1/about", "/v1/total?key=api-1&window=1h", "/v1/streams", "/v1/hits", "/api/v1/query?query=x",
		} {
			for _, token := range []string{"", secret, secret + "x"} {
				status, text, header := requestHeader(http.DefaultClient, http.MethodGet, s.URL()+path, "", "Authorization", "Bearer "+token)
				require.NotZero(t, status, text)
				outputs[path+" with "+token] = fmt.Sprint(header, text)
			}
		}
		require.Zero(t, s.Stop())
		outputs["its log"] = s.Logs()
		for where, text := range outputs {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s tells it: …%.300s…", where, text[max(0, i-200):])
			}
		}
	}
}
