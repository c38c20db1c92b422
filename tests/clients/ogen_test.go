// Package clients_test generates a client from the OpenAPI document, and asks with it.
package clients_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// ogenModule makes the generator the only requirement of a module: the versions
// of what generated clients need are those that the generator has.
const ogenModule = "module clients\n\ngo 1.26\n\nrequire github.com/ogen-go/ogen v1.24.0\n"

const limits = `limits:
  - {name: login, window: 1h, max: 2, policy: log}
  - {name: once, window: 1h, max: 1}
  - {name: tokens, window: 1h, max: 100}
  - {name: exports, window: 1m, max: 1, policy: concurrent}
  - {name: route, window: 1h, max: 1, key: "{method} {path}"}
`

// A client is generated from the document. A program that asks with it every operation of a
// running query, and errors too, gets what the API answers.
func TestGeneratedClientAsks(t *testing.T) {
	stack.OnlyInAll(t) // it fetches the generator and compiles for a minute
	t.Parallel()
	query := startAndCount(t)
	m := module{t, t.TempDir()}
	m.write("go.mod", []byte(ogenModule))
	document := m.generate(query)
	for _, file := range []string{"asks.go", "recorder.go"} {
		source, err := os.ReadFile(filepath.Join("testdata", file))
		require.NoError(t, err)
		m.write(file, source)
	}
	asked := m.run("run", ".", query, "secret")
	for _, operation := range operations(t, document) {
		if !strings.Contains("\n"+asked, "\n"+operation+" 20") {
			t.Errorf("no question to %s was answered: add one to testdata/asks.go", operation)
		}
	}
	for _, want := range []string{"get-total 400", "post-total 400", "post-take 429", "get-authz 429"} {
		if !strings.Contains(asked, want+"\n") {
			t.Errorf("no %s among the answers:\n%s", want, asked)
		}
	}
}

// The page about examples generates a client with the version that is tried here.
func TestPageNamesTheGenerator(t *testing.T) {
	page, err := os.ReadFile("../../examples/README.md")
	require.NoError(t, err)
	version := strings.TrimSpace(ogenModule[strings.LastIndexByte(strings.TrimSpace(ogenModule), ' '):])
	if !bytes.Contains(page, []byte("github.com/ogen-go/ogen@"+version+"\n")) {
		t.Errorf("examples/README.md does not name ogen %s", version)
	}
}

// startAndCount starts a query that knows some hits and a reject, and has tokens and limits.
func startAndCount(t *testing.T) (address string) {
	t.Helper()
	nats, redis := stack.SharedNATS(t), stack.SharedRedis(t)
	stack.Ingest(t, nats, redis)
	file := filepath.Join(t.TempDir(), "limits.yml")
	require.NoError(t, os.WriteFile(file, []byte(limits), 0o600))
	query := stack.Query(t, redis, "NATS_URL="+nats.URL(), "QUERY_LIMITS_FILE="+file, "QUERY_TAKE=any", "QUERY_TOKENS=secret", "QUERY_ERASE=on")
	hits := fmt.Sprintf(`[{"key":"checkout","n":7},{"key":"/cart","n":2},{"key":"old","ts":%d},{"key":"bad","n":0}]`, time.Now().Add(-2*time.Hour).UnixMilli())
	if _, err := nats.JetStream().Publish(t.Context(), "hits.x", []byte(hits)); err != nil {
		t.Fatal(err)
	}
	open := stack.Query(t, redis, "NATS_URL="+nats.URL())
	stack.Eventually(t, "all hits to be counted", func() (bool, string) { // shards advance one by one
		answer, err := stack.FetchTotals(open.URL(), url.Values{"key": {"checkout", "/cart", "old"}, "window": {"24h"}})
		return err == nil && !slices.ContainsFunc(answer.Totals, func(c stack.Total) bool { return c.Total == 0 }), fmt.Sprint(answer, err)
	})
	stack.Eventually(t, "the reject", func() (bool, string) {
		status, body, err := stack.Do(http.MethodGet, open.URL()+"/v1/rejects", nil)
		return status == http.StatusOK && bytes.Contains(body, []byte("bad_count")), fmt.Sprint(status, string(body), err)
	})
	return query.URL()
}

// module is a Go module of its own, in a directory of the test.
type module struct {
	t   *testing.T
	dir string
}

func (m module) write(name string, data []byte) {
	m.t.Helper()
	require.NoError(m.t, os.WriteFile(filepath.Join(m.dir, name), data, 0o600))
}

// run runs the go command in the module.
func (m module) run(args ...string) (printed string) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), "go", args...)
	cmd.Dir, cmd.Env = m.dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil || strings.Contains(errs.String(), "skipp") { // ogen leaves out what it cannot read
		m.t.Fatalf("go %v: %v\n%s%s", args, err, &out, &errs)
	}
	return out.String()
}

// generate makes the client of a document, in a package of its own.
func (m module) generate(query string) (document []byte) {
	m.t.Helper()
	status, document, err := stack.Do(http.MethodGet, query+"/openapi.json", nil)
	if err != nil || status != http.StatusOK {
		m.t.Fatalf("openapi.json: %d %v", status, err)
	}
	m.write("openapi.json", document)
	m.run("run", "github.com/ogen-go/ogen/cmd/ogen", "--target", "client", "--package", "client", "openapi.json")
	return document
}

// operations are the names of the operations in a document.
func operations(t *testing.T, document []byte) (names []string) {
	t.Helper()
	var d struct {
		Paths map[string]map[string]struct{ OperationID string }
	}
	require.NoError(t, json.Unmarshal(document, &d))
	for _, item := range d.Paths {
		for _, operation := range item {
			names = append(names, operation.OperationID)
		}
	}
	require.GreaterOrEqual(t, len(names), 15)
	return names
}
