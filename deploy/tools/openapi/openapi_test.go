package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// accepted are breaking changes, as the test prints them, that the next version makes on purpose and
// CHANGELOG.md lists.
var accepted = map[string]bool{}

const root = "../../.."

// The documents of query and collect break no client of the last release.
func TestClientsOfTheLastRelease(t *testing.T) {
	base := os.Getenv("OPENAPI_BASE") // a commit in place of the last release
	if base == "" {
		tag, err := exec.CommandContext(t.Context(), "git", "-C", root, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*").Output()
		if err != nil {
			t.Skip("NOTHING IS COMPARED: no tag of a release is in this clone (git fetch --tags, if there are releases)")
		}
		base = strings.TrimSpace(string(tag))
	}
	before := t.TempDir()
	run(t, "sh", "-c", fmt.Sprintf("git -C %s archive --format=tar '%s' | tar -x -C '%s'", root, base, before))
	old, now := documents(t, before), documents(t, root)
	for name := range old {
		broken, err := Breaking(old[name], now[name])
		require.NoError(t, err)
		for _, line := range broken {
			if !accepted[line] {
				t.Errorf("%s: clients of %s break: %s", name, base, line)
			}
		}
	}
}

func TestARemovedFieldIsFound(t *testing.T) {
	document := documents(t, root)["query"]
	at := func(v any, names ...string) map[string]any {
		for _, name := range names {
			v = v.(map[string]any)[name]
		}
		return v.(map[string]any)
	}
	for _, test := range []struct {
		name   string
		change func(document any)
		want   string
	}{
		{"nothing", func(any) {}, ""},
		{"a field more", func(d any) {
			at(d, "components", "schemas", "Total", "properties")["more"] = map[string]any{"type": "integer"}
		}, ""},
		{"a field less", func(d any) {
			total := at(d, "components", "schemas", "Total")
			delete(at(total, "properties"), "lower")
			total["required"] = slices.DeleteFunc(total["required"].([]any), func(name any) bool { return name == "lower" })
		}, "GET /v1/total: removed the required property `totals/items/lower`"},
		{"a path less", func(d any) { delete(at(d, "paths"), "/v1/about") }, "GET /v1/about: API path removed"},
	} {
		var changed any
		require.NoError(t, json.Unmarshal(document, &changed))
		test.change(changed)
		after, err := json.Marshal(changed)
		require.NoError(t, err)
		got, err := Breaking(document, after)
		if text := strings.Join(got, "\n"); err != nil || !strings.Contains(text, test.want) || test.want == "" && text != "" {
			t.Errorf("%s: %q %v, want %q", test.name, text, err, test.want)
		}
	}
}

// documents builds the programs of some sources, and returns what they serve, by name.
func documents(t *testing.T, sources string) map[string][]byte {
	t.Helper()
	bin := t.TempDir()
	run(t, "go", "build", "-C", sources, "-trimpath", "-buildvcs=false", "-o", bin+"/", "./cmd/query", "./cmd/collect")
	return map[string][]byte{
		"query":   served(t, filepath.Join(bin, "query"), "QUERY_ADDR", "NATS_URL=", "REDIS_URL=redis://127.0.0.1:1/0"),
		"collect": served(t, filepath.Join(bin, "collect"), "COLLECT_ADDR", "NATS_URL=nats://127.0.0.1:1"),
	}
}

// served is the OpenAPI document of a program, which needs no servers for it.
func served(t *testing.T, program, addrKey string, env ...string) []byte {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := free.Addr().String()
	_ = free.Close()
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(env, addrKey+"="+addr)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill(); <-ended }()
	for deadline := time.Now().Add(time.Minute); ; {
		body, err := get(t, "http://"+addr+"/openapi.json")
		if err == nil {
			return body
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s ended: %v\n%s", program, err, log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s serves no document: %v\n%s", program, err, log.String())
		}
	}
}

func get(t *testing.T, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the Makefile builds, so that packages are compiled once
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}
