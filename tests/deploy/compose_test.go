package deploy_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// composed is what compose makes of its files with these variables, as YAML.
func composed(t *testing.T, env []string, files ...string) (string, error) {
	t.Helper()
	var args []string
	for _, file := range files {
		args = append(args, "-f", filepath.Join("deploy", file))
	}
	return runCompose(t, env, append(args, "config")...)
}

// composeCommand is that of this machine; empty if there is none.
var composeCommand = sync.OnceValue(func() []string {
	if _, err := tryIn("", "docker", "compose", "version"); err == nil {
		return []string{"docker", "compose"}
	}
	if _, err := exec.LookPath("docker-compose"); err == nil {
		return []string{"docker-compose"}
	}
	return nil
})

func runCompose(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	compose := composeCommand()
	if compose == nil {
		t.Skip("NOT CHECKED: deploy/compose.yml, because neither `docker compose` nor docker-compose is installed")
	}
	// What the person who runs the tests has set is not meant.
	own := slices.DeleteFunc(os.Environ(), func(e string) bool {
		return regexp.MustCompile(`^(VERSION|INGEST_PARTITIONS|COLLECT_[A-Z_]+|QUERY_[A-Z_]+)=`).MatchString(e)
	})
	return tryWith(append(own, env...), root(t), compose[0], append(compose[1:], args...)...)
}

// service cuts one service out of compose's own output.
func service(t *testing.T, config, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^  ` + name + `:\n((?:    .*\n)+)`).FindStringSubmatch(config)
	if m == nil {
		t.Fatalf("there is no service %s in %s", name, config)
	}
	return m[1]
}

// collect listens on loopback alone, and asks for tokens if their file is named. Several query services need
// a range of ports.
func TestComposeFile(t *testing.T) {
	const loopback = `host_ip: 127\.0\.0\.1|127\.0\.0\.1:80[89]\d`
	for _, c := range []struct {
		files, env     []string
		query, collect []string // patterns
	}{
		{
			[]string{"compose.yml"}, nil,
			[]string{`NATS_URL: nats://nats:4222`, `QUERY_ADDR: 0\.0\.0\.0:8080`, `8080`}, []string{`NATS_URL: nats://nats:4222`, `--healthcheck`},
		}, {
			[]string{"compose.yml"}, []string{"COLLECT_ORIGINS=https://shop.example.com", "COLLECT_BEACON_PREFIX=page.", "COLLECT_PORTS=8091-8092", "QUERY_PORTS=8080-8089"},
			[]string{`8080-8089`}, []string{`COLLECT_ORIGINS: https://shop.example.com`, `COLLECT_BEACON_PREFIX: page.`, `8091-8092`},
		}, {
			[]string{"compose.yml", "compose.tokens.yml"}, []string{"COLLECT_TOKENS=/some/tokens.yml"}, nil,
			[]string{`COLLECT_TOKENS_FILE: /etc/tallyroll/tokens.yml`, `source: /some/tokens.yml`, `target: /etc/tallyroll/tokens.yml`, `read_only: true`},
		},
	} {
		config, err := composed(t, c.env, c.files...)
		require.NoError(t, err)
		// Streams would be given nothing without the mapping of compose.partitions.yml.
		require.NotContains(t, config, "INGEST_PARTITIONS")
		prefix := "web."
		if slices.Contains(c.env, "COLLECT_BEACON_PREFIX=page.") {
			prefix = "page."
		}
		require.Contains(t, service(t, config, "ingest"), "INGEST_MAX_NAMES: "+prefix+"=10000")
		for _, want := range c.query {
			require.Regexp(t, want, service(t, config, "query"))
		}
		for _, want := range append(c.collect, `COLLECT_ADDR: 0\.0\.0\.0:8081`, loopback) {
			require.Regexp(t, want, service(t, config, "collect"))
		}
	}
	_, err := composed(t, nil, "compose.yml", "compose.tokens.yml")
	require.ErrorContains(t, err, "file of tokens", "without COLLECT_TOKENS")
}

// composeUp starts services of compose.yml with the image.
func composeUp(t *testing.T, img string, env []string, files []string, services ...string) {
	t.Helper()
	command(t, "", "docker", "tag", img, "tallyroll:"+img)
	t.Cleanup(func() { command(t, "", "docker", "image", "rm", "tallyroll:"+img) })
	env = append(env, "VERSION="+img)
	args := []string{"-p", img}
	for _, file := range files {
		args = append(args, "-f", "deploy/"+file)
	}
	t.Cleanup(func() {
		_, err := runCompose(t, env, append(args, "down", "--volumes")...)
		require.NoError(t, err)
	})
	_, err := runCompose(t, env, append(append(args, "up", "-d", "--no-deps", "--no-build"), services...)...)
	require.NoError(t, err)
}

// collectKnowsTokens starts collect by compose with a file of tokens.
func collectKnowsTokens(t *testing.T, img string) {
	const secret = "hunter2"
	file, port := filepath.Join(t.TempDir(), "tokens.yml"), stack.FreePort(t)
	text := fmt.Sprintf("tokens: [{name: a, sha256: %x, may: [count]}]\n", sha256.Sum256([]byte(secret)))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644)) // another user reads it; it holds no secret
	composeUp(t, img, []string{fmt.Sprint("COLLECT_PORTS=", port), "COLLECT_TOKENS=" + file}, []string{"compose.yml", "compose.tokens.yml"}, "collect")
	status := func(token string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/v1/hits", port), strings.NewReader(`{"key":"a"}`))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	// Nothing can be stored, because NATS does not run. A wrong token gets another answer than that.
	stack.Eventually(t, "collect to know its tokens", func() (bool, string) {
		wrong, right := status("wrong"), status(secret)
		return wrong == http.StatusUnauthorized && right == http.StatusServiceUnavailable, fmt.Sprint(wrong, right)
	})
}

// twoQueries starts two query services by compose in a range of ports.
func twoQueries(t *testing.T, img string) {
	first := stack.FreePort(t)
	ports := fmt.Sprintf("%d-%d", first, first+9)
	composeUp(t, img, []string{"QUERY_PORTS=" + ports}, []string{"compose.yml"}, "--scale", "query=2", "query")
	stack.Eventually(t, "two query services in ports "+ports, func() (bool, string) {
		well := 0
		for port := first; port < first+10; port++ {
			if status, _, err := stack.Do(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/healthz", port), nil); err == nil && status == http.StatusOK {
				well++
			}
		}
		return well == 2, fmt.Sprint(well, " answer")
	})
	missing := filepath.Join(t.TempDir(), "limits.yml")
	_, err := runCompose(t, []string{"VERSION=" + img, "LIMITS_FILE=" + missing}, "-p", img, "-f", "deploy/compose.yml", "up", "-d", "--no-deps", "--no-build", "query")
	require.ErrorContains(t, err, "source path does not exist")
	require.NoDirExists(t, missing)
}

// Partitions need no edit of a file that is tracked, and one number alone.
func TestComposePartitions(t *testing.T) {
	files := []string{"compose.yml", "compose.partitions.yml"}
	config, err := composed(t, []string{"INGEST_PARTITIONS=4"}, files...)
	require.NoError(t, err)
	nats, ingest := service(t, config, "nats"), service(t, config, "ingest")
	mapping := regexp.MustCompile(`NATS_HITS_MAPPING: '(.*)'`).FindStringSubmatch(nats)
	if mapping == nil || !strings.Contains(ingest, "INGEST_PARTITIONS: '4'") && !strings.Contains(ingest, `INGEST_PARTITIONS: "4"`) {
		t.Fatalf("nats: %s\ningest: %s", nats, ingest)
	}
	for _, file := range []string{"nats.conf", "nats-partitioned.conf"} {
		require.Contains(t, nats, "/etc/nats/"+file, "what is mounted")
	}
	_, err = composed(t, nil, files...)
	require.ErrorContains(t, err, "number of streams", "without INGEST_PARTITIONS")
	file := filepath.Join(natsFiles(t), "nats-partitioned.conf")
	// The server has its settings from a file alone here: what the container is given
	// in its environment stands at the head of it.
	text := "NATS_HITS_MAPPING: " + mapping[1] + "\n" + read(t, file)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	fourStreamsShare(t, file)
}
