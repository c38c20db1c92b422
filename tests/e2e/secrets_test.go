package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

var secretsHelp = regexp.MustCompile(`(?m)^Each of ([A-Z_, ]+) can be given as a file instead: ([A-Z_]+)_FILE`)

// secretsOf are the settings of a program that can be given as files, as its help lists them.
func secretsOf(t *testing.T, program string) []string {
	t.Helper()
	_, out := ends(t, program, []string{"--help"})
	m := secretsHelp.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("%s --help names no secret: %s", program, out)
	}
	return strings.Split(m[1], ", ")
}

// Every secret of every program can be given as a file. A file that cannot be read, and a value beside a file, are
// refused by name, and no line has what is in them.
func TestASecretFileThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	nats := []string{"NATS_URL", "NATS_PASSWORD", "NATS_TOKEN"}
	redis := []string{"REDIS_URL", "REDIS_PASSWORD"}
	good := filepath.Join(t.TempDir(), "secret")
	write(t, good, secret)
	for program, want := range map[string][][]string{
		"ingest": {nats, redis}, "query": {nats, redis}, "collect": {nats}, "promql": {redis}, "rls": {redis}, "publish": {nats}, "redrive": {nats}, "audit": {nats, redis},
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			secrets := secretsOf(t, program)
			for _, keys := range want {
				for _, key := range keys {
					if !strings.Contains(strings.Join(secrets, ",")+",", key+",") {
						t.Errorf("its help lists %v, without %s", secrets, key)
					}
				}
			}
			for _, key := range secrets {
				for _, env := range [][]string{{key + "_FILE=/none/" + key}, {key + "_FILE=" + good, key + "=" + secret}, {key + "_FILE=" + secret}} {
					if code, out := ends(t, program, nil, env...); code != 2 || !strings.HasPrefix(out, program+": "+key+"_FILE") || strings.Count(out, "\n") != 1 || strings.Contains(out, secret) {
						t.Errorf("%v: it ends with %d and %q", env, code, out)
					}
				}
			}
		})
	}
}

// With a secret in every setting that takes one, given as it is or in a file, no program tells it to anybody: not in
// its log, its answers and metrics, nor to those who list the processes of the machine.
func TestNoProgramTellsItsSecrets(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"value", "file"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			nats := stack.NATS(t, only("user", secret))
			redis := stack.Redis(t)
			require.NoError(t, redis.Client().Do(t.Context(), "acl", "setuser", "user", "on", ">"+secret, "allkeys", "allchannels", "allcommands").Err())
			set := func(settings ...string) (env []string) {
				for _, s := range settings {
					key, value, _ := strings.Cut(s, "=")
					if how == "file" && strings.Contains(value, secret) {
						file := filepath.Join(dir, key)
						write(t, file, value+"\n")
						s = key + "_FILE=" + file
					}
					env = append(env, s)
				}
				return env
			}
			natsAt, redisAt := strings.TrimPrefix(nats.URL(), "nats://"), redis.Addr()
			byURL := set("NATS_URL=nats://user:"+secret+"@"+natsAt, "REDIS_URL=redis://user:"+secret+"@"+redisAt)
			apart := append(set("NATS_PASSWORD="+secret, "REDIS_PASSWORD="+secret), "PROMQL_TOKENS="+secret, "QUERY_TOKENS="+secret,
				"NATS_USER=user", "NATS_URL="+natsAt, "REDIS_URL=redis://user@"+redisAt, "LOG_LEVEL=debug")
			byURL = append(byURL, "LOG_LEVEL=debug")

			var services []*stack.Service
			for _, env := range [][]string{byURL, apart} {
				services = append(services, stack.Ingest(t, nil, nil, env...), stack.Query(t, nil, env...), stack.Collect(t, nil, env...), stack.PromQL(t, nil, env...))
				for program, args := range map[string][]string{"publish": {"--count", "3", "--counters", "1"}, "redrive": {"--dry-run"}, "audit": nil} {
					if code, out := ends(t, program, args, env...); code != 0 && program != "redrive" || strings.Contains(out, secret) {
						t.Errorf("%s ends with %d and %q", program, code, out)
					}
				}
			}
			for _, key := range []string{"NATS_URL", "REDIS_URL", "NATS_PASSWORD", "REDIS_PASSWORD"} {
				if how == "file" {
					write(t, filepath.Join(dir, key), secret+" is no longer\nwhat was there")
				}
			}
			require.NoError(t, redis.Client().Do(t.Context(), "client", "kill", "user", "user").Err())
			nats.Reload(only("user", "other")) // cuts them, and refuses them
			for _, s := range services {
				if strings.Contains(s.Logs(), "NATS") || strings.Contains(s.Logs(), `"nats"`) {
					s.WaitForLog("NATS lost")
				}
			}
			nats.Reload(only("user", secret))
			for _, s := range services {
				told := make(map[string]string)
				for _, path := range []string{"/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/v1/about", "/v1/total?key=api-1&window=1h", "/v1/streams", "/v1/hits", "/api/v1/query?query=x", "/none"} {
					for _, token := range []string{"", secret, secret + "x"} {
						req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+path, nil)
						require.NoError(t, err)
						if token != "" {
							req.Header.Set("Authorization", "Bearer "+token)
						}
						resp, err := http.DefaultClient.Do(req)
						require.NoError(t, err)
						body, err := io.ReadAll(resp.Body)
						_ = resp.Body.Close()
						told[path+" with "+token] = fmt.Sprint(resp.Header, string(body), err)
					}
				}
				cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.PID()))
				if err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
				told["its command line"] = string(cmdline)
				if code := s.Stop(); code != 0 {
					t.Errorf("exit code %d", code)
				}
				told["its log"] = s.Logs()
				for where, text := range told {
					if i := strings.Index(text, secret); i >= 0 {
						t.Errorf("%s tells it: …%.300s…", where, text[max(0, i-200):])
					}
				}
			}
		})
	}
}
