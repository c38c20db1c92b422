package e2e_test

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"tallyroll/tests/stack"
)

// ends runs a program that is expected to end by itself.
func ends(t *testing.T, name string, args []string, env ...string) (code int, output string) {
	t.Helper()
	return endsWith(t, name, nil, args, env...)
}

// endsWith is ends with an input.
func endsWith(t *testing.T, name string, stdin io.Reader, args []string, env ...string) (code int, output string) {
	t.Helper()
	cmd := stack.Command(t.Context(), t, name, args, env)
	var out bytes.Buffer
	cmd.Stdin = stdin
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

func TestHelpNamesEverySetting(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string][]string{
		"ingest": {"NATS_URL", "NATS_CREDS", "NATS_USER", "NATS_PASSWORD", "NATS_TOKEN", "NATS_CA", "NATS_CERT", "NATS_KEY", "REDIS_URL",
			"TALLYROLL_NAMESPACE", "TIERS", "SHARDS", "INGEST_STREAMS", "INGEST_SUBJECT", "INGEST_PARTITIONS", "INGEST_FLUSH_INTERVAL",
			"INGEST_MAX_COMMANDS", "INGEST_MAX_LOAD", "INGEST_MAX_AHEAD", "INGEST_MAX_HITS", "INGEST_REPLICAS", "INGEST_MAX_AGE", "INGEST_ADDR", "INGEST_WORKER", "INGEST_ALLOW_EVICTION", "LOG_LEVEL", "LOG_FORMAT"},
		"query":   {"REDIS_URL", "TALLYROLL_NAMESPACE", "QUERY_ADDR", "QUERY_TOKENS", "QUERY_TLS_CERT", "QUERY_TLS_KEY", "QUERY_MAX_KEYS", "QUERY_LIMITS_FILE", "QUERY_TAKE", "QUERY_TAKE_TIMEOUT", "QUERY_TRUSTED_PROXIES", "LOG_LEVEL", "LOG_FORMAT"},
		"publish": {"NATS_URL"},
		"redrive": {"NATS_URL", "TALLYROLL_NAMESPACE"},
		"audit":   {"NATS_URL", "REDIS_URL", "TALLYROLL_NAMESPACE", "INGEST_MAX_AHEAD", "INGEST_MAX_HITS"},
	} {
		code, out := ends(t, name, []string{"--help"})
		for _, key := range keys {
			if !strings.Contains(out, key+" ") {
				t.Errorf("%s --help does not name %s", name, key)
			}
		}
		if version, v := ends(t, name, []string{"--version"}); code != 0 || version != 0 || !strings.HasPrefix(v, name+" ") {
			t.Errorf("%s --help ends with %d, --version with %d: %q", name, code, version, v)
		}
	}
}

func TestABadSettingIsOneClearLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ program, env, want string }{
		{"ingest", "TIERS=1m/1h,1s/1m", "from fine to coarse"},
		{"ingest", "SHARDS=0", "from 1 to"},
		{"ingest", "SHARDS=many", "a whole number"},
		{"ingest", "INGEST_FLUSH_INTERVAL=250", "a duration"},
		{"ingest", "INGEST_MAX_COMMANDS=1", "from 21 to"},
		{"ingest", "INGEST_MAX_LOAD=1000", "from 1048576 to"},
		{"ingest", "REDIS_URL=http://user:hunter2@localhost", "redis://"},
		{"ingest", "INGEST_STREAMS=[", "globs"},
		{"ingest", "LOG_LEVEL=loud", "debug, info, warn or error"},
		{"query", "LOG_FORMAT=loud", "auto, json or console"},
		{"ingest", "TALLYROLL_NAMESPACE={x}", "letters"},
		{"ingest", "INGEST_ADDR=nowhere", "host:port"},
		{"query", "QUERY_MAX_KEYS=0", "from 1"},
		{"query", "QUERY_TAKE=maybe", "named, any or off"},
		{"query", "QUERY_TAKE_TIMEOUT=1m", "from 1ms to 5s"},
		{"query", "QUERY_TRUSTED_PROXIES=10.0.0.0/99", "networks"},
		{"query", "QUERY_TLS_CERT=cert.pem", "QUERY_TLS_KEY"},
		{"promql", "PROMQL_MAX_COUNTERS=0", "from 1"},
		{"promql", "PROMQL_TIMEOUT=1h", "1ms to 10m"},
		{"rls", "RLS_LIMITS_FILE=", "a YAML file of limits"},
	} {
		key, _, _ := strings.Cut(c.env, "=")
		code, out := ends(t, c.program, nil, c.env)
		if code != 2 || !strings.HasPrefix(out, c.program+": "+key) || !strings.Contains(out, c.want) || strings.Count(out, "\n") != 1 || strings.Contains(out, "hunter2") {
			t.Errorf("%s with %s ends with %d and %q; want code 2 and one line with %q", c.program, c.env, code, out, c.want)
		}
	}
}

func TestAnotherLayoutIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t)
	code, out := ends(t, "ingest", nil, "NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL(), "SHARDS=8", "INGEST_ADDR=127.0.0.1:0")
	if code != 2 || !strings.Contains(out, "SHARDS=16") || !strings.Contains(out, "TALLYROLL_NAMESPACE") {
		t.Errorf("ingest with another layout ends with %d and %q", code, out)
	}
}

func TestARedisThatEvictsIsRefused(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t, stack.RedisArgs("--maxmemory-policy", "allkeys-lru"))
	nats := stack.NATS(t)
	code, out := ends(t, "ingest", nil, "NATS_URL="+nats.URL(), "REDIS_URL="+redis.URL(), "INGEST_ADDR=127.0.0.1:0")
	if code != 2 || !strings.Contains(out, "INGEST_ALLOW_EVICTION") {
		t.Errorf("ingest on a Redis that evicts ends with %d and %q", code, out)
	}
	allowed := stack.Ingest(t, nats, redis, "INGEST_ALLOW_EVICTION=true")
	if !strings.Contains(allowed.Logs(), "allkeys-lru") {
		t.Errorf("the risk is not logged: %s", allowed.Logs())
	}
}

func TestDevSaysItsVersion(t *testing.T) {
	t.Parallel()
	if code, out := ends(t, "dev", []string{"--version"}); code != 0 || !strings.HasPrefix(out, "dev ") {
		t.Errorf("dev --version ends with %d and %q", code, out)
	}
}

// --help shows defaults, not what is set.
func TestHelpHasNoSecrets(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"ingest", "query", "promql", "rls", "publish", "redrive", "audit"} {
		code, out := ends(t, program, []string{"--help"}, "NATS_URL=nats://user:"+secret+"@h", "REDIS_URL=redis://:"+secret+"@h", "NATS_PASSWORD="+secret)
		if code != 0 || strings.Contains(out, secret) {
			t.Errorf("%s --help ends with %d and %q", program, code, out)
		}
	}
}

// A mistyped variable has no effect, and whoever started the program is told so.
func TestAMistypedVariableIsNamed(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	query := stack.Query(t, redis, "QUERY_LIMIT_FILE=limits.yml", "INGEST_FLUSH=1s", stack.NoWait)
	query.WaitForLog(`"variable":"QUERY_LIMIT_FILE","nearest":"QUERY_LIMITS_FILE"`)
	if strings.Contains(query.Logs(), "INGEST_FLUSH") {
		t.Error("query warns of a variable of another program")
	}
}
