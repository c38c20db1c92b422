package e2e_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// refusedFile has runs of programs with a mistake, each with the line that it ends with, and the files that
// they read. UPDATE_REFUSED=1 rewrites the lines.
const refusedFile = "testdata/refused.txt"

// A mistake in a setting ends a program with code 2 and one line that names the setting and what is allowed,
// and quotes no secret. What each setting allows is tested where it is read.
func TestAMistakeInASettingIsOneClearLine(t *testing.T) {
	t.Parallel()
	nats, redis, dir := stack.NATS(t), stack.Redis(t), t.TempDir()
	_, err := nats.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.*", "hitp.1.>"}})
	require.NoError(t, err)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	redisAddr, natsAddr := redis.Addr(), strings.TrimPrefix(nats.URL(), "nats://")
	expand := strings.NewReplacer("$DIR", dir, "$TAKEN", taken.Addr().String(), "$REDIS", redisAddr, "$NATS", natsAddr)
	shorten := strings.NewReplacer(dir, "$DIR", taken.Addr().String(), "$TAKEN", redisAddr, "$REDIS", natsAddr, "$NATS")
	var all []string
	for line := range strings.Lines(read(t, refusedFile)) {
		mark, run, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if mark == "" || mark == "#" || mark == ">" {
			all = append(all, line)
		}
		if name, text, _ := strings.Cut(run, " "); mark == ">" {
			write(t, filepath.Join(dir, name), expand.Replace(strings.ReplaceAll(text, `\n`, "\n")))
		}
		if mark != "$" {
			continue
		}
		env := []string{"NATS_URL=" + nats.URL(), "REDIS_URL=" + redis.URL(), "LOG_LEVEL=error",
			"INGEST_ADDR=127.0.0.1:0", "QUERY_ADDR=127.0.0.1:0", "COLLECT_ADDR=127.0.0.1:0", "PROMQL_ADDR=127.0.0.1:0"}
		words := strings.Fields(expand.Replace(run))
		for len(words) > 1 && strings.Contains(words[0], "=") {
			env, words = append(env, words[0]), words[1:]
		}
		code, out := runToEnd(t, words[0], words[1:], env...)
		if code != 2 || !strings.HasPrefix(out, words[0]+": ") || strings.Count(out, "\n") != 1 || strings.Contains(out, secret) {
			t.Errorf("%s ends with %d and %q; want code 2 and one line without a secret", run, code, out)
		}
		all = append(all, "$ "+run+"\n", shorten.Replace(out))
	}
	if os.Getenv("UPDATE_REFUSED") != "" {
		write(t, refusedFile, strings.Join(all, ""))
	}
	require.Equal(t, read(t, refusedFile), strings.Join(all, ""))
}

// --help shows defaults, not what is set, and which secrets can be given as files.
func TestHelpAndVersionOfEveryProgram(t *testing.T) {
	t.Parallel()
	const nats, redis = "NATS_URL, NATS_PASSWORD, NATS_TOKEN", "REDIS_URL, REDIS_PASSWORD"
	for program, secrets := range map[string]string{
		"ingest": nats + ", " + redis, "query": nats + ", " + redis, "collect": nats, "promql": redis, "rls": nats + ", " + redis,
		"watch": nats + ", " + redis, "publish": nats, "redrive": nats, "audit": nats + ", " + redis,
	} {
		code, help := runToEnd(t, program, []string{"--help"}, "NATS_URL=nats://user:"+secret+"@h", "REDIS_URL=redis://:"+secret+"@h", "NATS_PASSWORD="+secret)
		listed := linesWith(help, "can be given as a file instead")
		for _, name := range strings.Split(secrets, ", ") {
			if code != 0 || !strings.Contains(listed, name) || strings.Contains(help, secret) {
				t.Errorf("%s --help ends with %d and lists %s as secrets, without %s: %s", program, code, listed, name, help)
			}
		}
		if code, out := runToEnd(t, program, []string{"--version"}); code != 0 || !strings.HasPrefix(out, program+" ") {
			t.Errorf("%s --version ends with %d and %q", program, code, out)
		}
	}
}

func TestARedisThatEvictsIsUsedOnlyIfAllowed(t *testing.T) {
	t.Parallel()
	nats, redis := stack.NATS(t), stack.Redis(t, stack.RedisArgs("--maxmemory-policy", "allkeys-lru"))
	code, out := runToEnd(t, "ingest", nil, "NATS_URL="+nats.URL(), "REDIS_URL="+redis.URL(), "INGEST_ADDR=127.0.0.1:0")
	if code != 2 || !strings.Contains(out, "INGEST_ALLOW_EVICTION") {
		t.Errorf("ingest ends with %d and %q", code, out)
	}
	allowed := stack.Ingest(t, nats, redis, "INGEST_ALLOW_EVICTION=true")
	require.Contains(t, allowed.Logs(), "allkeys-lru", "the risk is not logged")
}
