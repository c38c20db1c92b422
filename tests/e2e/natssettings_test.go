package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

const secret = "hunter2" // a part of every password and token of these tests

// secretURL is an endpoint with credentials in its address.
type secretURL string

func (u secretURL) URL() string { return string(u) }

// What cannot work is refused before anything is waited for, by every program that
// connects to NATS, and nothing that is printed has a secret in it.
func TestANATSSettingThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	none, empty, context := filepath.Join(dir, "none"), filepath.Join(dir, "empty"), filepath.Join(dir, "context.json")
	write(t, context, `{"`+secret+`":"x"}`)
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, c := range []struct {
		key  string // that must be named
		env  []string
		want string
	}{
		{"NATS_URL", []string{"NATS_URL=nats://user:" + secret + "%@127.0.0.1:4222"}, "%2C"},
		{"NATS_URL", []string{"NATS_URL=nats://user:" + secret + "/x@127.0.0.1:4222"}, "%2F"},
		{"NATS_URL", []string{"NATS_URL=nats://h:1,http://user:" + secret + "@127.0.0.1:4222"}, "not http://"},
		{"NATS_URL", []string{"NATS_URL=user:" + secret + "@127.0.0.1"}, "nats://"},
		{"NATS_URL", []string{"NATS_URL=nats://user:12," + secret + "://x@127.0.0.1:4222"}, "%2C"},
		{"NATS_CREDS", []string{"NATS_CREDS=-----BEGIN NATS USER JWT-----" + secret}, "no such file"},
		{"NATS_NKEY", []string{"NATS_NKEY=SUAM" + strings.ToUpper(secret) + strings.Repeat("A", 47)}, "no such file"},
		{"NATS_KEY", []string{"NATS_CERT=" + empty, "NATS_KEY=-----BEGIN PRIVATE KEY-----" + secret}, "no such file"},
		{"NATS_CONTEXT", []string{"NATS_CONTEXT=" + context}, "not known here"},
		{"NATS_CREDS", []string{"NATS_CREDS=" + none}, "no such file"},
		{"NATS_CREDS", []string{"NATS_CREDS=" + dir}, "is a directory"},
		{"NATS_CREDS", []string{"NATS_CREDS=" + empty}, "JWT"},
		{"NATS_CA", []string{"NATS_CA=" + none}, "no such file"},
		{"NATS_CA", []string{"NATS_CA=" + empty}, "certificate"},
		{"NATS_CERT", []string{"NATS_CERT=" + none, "NATS_KEY=" + empty}, "no such file"},
		{"NATS_KEY", []string{"NATS_CERT=" + empty, "NATS_KEY=" + none}, "no such file"},
		{"NATS_NKEY", []string{"NATS_NKEY=" + none}, "no such file"},
		{"NATS_NKEY", []string{"NATS_NKEY=" + empty}, "seed"},
		{"NATS_NKEY", []string{"NATS_NKEY=" + empty, "NATS_CREDS=" + empty}, "NATS_CREDS"},
		{"NATS_JS_DOMAIN", []string{"NATS_JS_DOMAIN=a", "NATS_JS_API_PREFIX=b.c"}, `NATS_JS_API_PREFIX="b.c"`},
		{"NATS_JS_DOMAIN", []string{"NATS_JS_DOMAIN=a.b"}, "without dots"},
		{"NATS_JS_API_PREFIX", []string{"NATS_JS_API_PREFIX=a.*"}, "without wildcards"},
		{"NATS_JS_API_PREFIX", []string{"NATS_JS_API_PREFIX=a..b"}, "without wildcards"},
		{"NATS_INBOX_PREFIX", []string{"NATS_INBOX_PREFIX=_INBOX.>"}, "without wildcards"},
		{"NATS_CONTEXT", []string{"NATS_CONTEXT=none", "XDG_CONFIG_HOME=" + dir}, "no such file"},
		{"NATS_CONTEXT", []string{"NATS_CONTEXT=" + none}, "no such file"},
		{"NATS_CONTEXT", []string{"NATS_CONTEXT=" + empty}, "not a JSON object"},
		{"NATS_CONTEXT", []string{"NATS_CONTEXT=.."}, "the name of a context"},
		{"NATS_CERT", []string{"NATS_CERT=" + empty, "NATS_KEY=" + empty}, "NATS_KEY"},
		{"NATS_KEY", []string{"NATS_KEY=" + empty}, "NATS_CERT"},
	} {
		for _, program := range []string{"ingest", "query", "publish", "redrive", "audit"} {
			t.Run(program+" "+strings.ReplaceAll(c.env[0], "/", ""), func(t *testing.T) {
				code, out := ends(t, program, nil, append(c.env, "NATS_PASSWORD="+secret, "INGEST_ADDR=127.0.0.1:0", "QUERY_ADDR=127.0.0.1:0")...)
				if code != 2 || !strings.HasPrefix(out, program+": "+c.key) || !strings.Contains(out, c.want) || strings.Count(out, "\n") != 1 || strings.Contains(strings.ToLower(out), secret) {
					t.Errorf("it ends with %d and %q; want code 2 and one line with %q", code, out, c.want)
				}
			})
		}
	}
}

// A password in any part of REDIS_URL is in no error, and in no log: what would be taken for an address is refused.
func TestNoSecretOfRedisIsPrinted(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis+cluster://127.0.0.1:1?addr=" + secret + "@127.0.0.1:2", "redis+cluster://127.0.0.1:1?addr=user:" + secret + "@127.0.0.1:2", "redis+sentinel://127.0.0.1:1?master_name=m&addr=" + secret + "%2F@127.0.0.1:2",
		"redis://127.0.0.1:1?" + secret, "redis://127.0.0.1:1/" + secret, "redis://user:" + secret, "redis://user," + secret + ":1", "redis+cluster://127.0.0.1:1?" + secret + "=1", "http://user:" + secret + "@h", "user:" + secret + "@h",
	} {
		for _, program := range []string{"ingest", "query", "promql"} {
			code, out := ends(t, program, nil, "REDIS_URL="+url, "NATS_URL=127.0.0.1:1", "INGEST_ADDR=127.0.0.1:0", "QUERY_ADDR=127.0.0.1:0", "PROMQL_ADDR=127.0.0.1:0")
			if code != 2 || !strings.HasPrefix(out, program+": REDIS_URL: ") || strings.Count(out, "\n") != 1 || strings.Contains(out, secret) {
				t.Errorf("%s with %s ends with %d and %q", program, url, code, out)
			}
		}
	}
}

// The log says which server it waits for, that it was lost and is back; never how it is asked.
func TestNoSecretIsLogged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		user string // of the URL
		set  func(*server.Options)
	}{
		"password": {"user:" + secret + "@", func(o *server.Options) { o.Username, o.Password = "user", secret }},
		"token":    {secret + "@", func(o *server.Options) { o.Authorization = secret }},
	} {
		t.Run(name, func(t *testing.T) {
			nats, redis := stack.NATS(t, c.set), stack.Redis(t)
			addr := strings.TrimPrefix(nats.URL(), "nats://")
			url := secretURL("nats://" + c.user + addr)
			nats.Stop()
			ingest := stack.Ingest(t, url, redis, stack.NoWait, "LOG_LEVEL=debug")
			query := stack.Query(t, redis, stack.NoWait, "LOG_LEVEL=debug", "NATS_URL="+url.URL())
			for _, p := range []*stack.Service{ingest, query} {
				p.WaitForLog("waiting for NATS at " + addr)
			}
			nats.Start()
			ingest.WaitReady()
			query.WaitForLog("answering on NATS")
			nats.Stop()
			for _, p := range []*stack.Service{ingest, query} {
				p.WaitForLog("NATS lost")
			}
			nats.Start()
			for _, p := range []*stack.Service{ingest, query} {
				p.WaitForLog("NATS back")
				if code := p.Stop(); code != 0 {
					t.Errorf("exit code %d", code)
				}
				if strings.Contains(p.Logs(), secret) {
					t.Errorf("the log has the secret: %s", p.Logs())
				}
			}
			wrong := strings.Replace(url.URL(), secret, secret+"x", 1)
			for program, args := range map[string][]string{"ingest": nil, "query": nil, "publish": {"--count", "1"}} {
				code, out := ends(t, program, args, "NATS_URL="+wrong, "REDIS_URL="+redis.URL(), "INGEST_ADDR=127.0.0.1:0", "QUERY_ADDR=127.0.0.1:0")
				if code != 2 || !strings.Contains(out, "NATS at "+addr+" refused the credentials") || !strings.Contains(out, "NATS_URL") || strings.Contains(out, secret) {
					t.Errorf("%s with refused credentials ends with %d and %q", program, code, out)
				}
			}
		})
	}
}

// What the server refuses of the streams that ingest makes is a setting's fault, and ends it.
func TestAStreamThatTheServerRefuses(t *testing.T) {
	t.Parallel()
	nats, redis := stack.NATS(t), stack.Redis(t)
	if _, err := nats.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.*", "hitp.1.>"}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ env, want string }{
		{"INGEST_SUBJECT=orders.>", "ORDERS"},
		{"INGEST_SUBJECT=$JS.API.>", "jetstream api"},
		{"INGEST_SUBJECT=>", "all subjects"},
		{"INGEST_SUBJECT=hits..a", "a NATS subject"},
		{"INGEST_SUBJECT=hits.>.a", "a NATS subject"},
		{"INGEST_PARTITIONS=2", "ORDERS"},
		{"INGEST_STREAMS=CLICKS", "HITS"},
		{"INGEST_REPLICAS=3", "non-clustered"},
	} {
		key, _, _ := strings.Cut(c.env, "=")
		t.Run(c.env, func(t *testing.T) {
			code, out := ends(t, "ingest", nil, c.env, "NATS_URL="+nats.URL(), "REDIS_URL="+redis.URL(), "INGEST_ADDR=127.0.0.1:0", "LOG_LEVEL=error")
			if code != 2 || !strings.HasPrefix(out, "ingest: "+key) || !strings.Contains(out, c.want) || strings.Count(out, "\n") != 1 {
				t.Errorf("it ends with %d and %q; want code 2 and one line with %q", code, out, c.want)
			}
		})
	}
}

func TestMaxAgeInDays(t *testing.T) {
	t.Parallel()
	s := start(t, "INGEST_MAX_AGE=2d")
	stream, err := s.js.Stream(t.Context(), "HITS")
	require.NoError(t, err)
	if age := stream.CachedInfo().Config.MaxAge; age != 48*time.Hour {
		t.Errorf("hits are kept for %v, want 48h", age)
	}
	for env, want := range map[string]string{
		"INGEST_MAX_AGE=2days": "2d", "INGEST_MAX_AGE=1s": "from 1m to 3650d", "INGEST_FLUSH_INTERVAL=1d": "from 1ms to 1m", "INGEST_MAX_AHEAD=-1s": "from 0s to 1d",
	} {
		key, _, _ := strings.Cut(env, "=")
		if code, out := ends(t, "ingest", nil, env); code != 2 || !strings.HasPrefix(out, "ingest: "+key) || !strings.Contains(out, want) {
			t.Errorf("%s ends with %d and %q, want %q in it", env, code, out, want)
		}
	}
}
