package query

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// The document is one that others can read: clients are generated from it, and
// the examples are of the types that it describes.
func TestOpenAPIIsValid(t *testing.T) {
	for target, version := range map[string]string{"/openapi.json": "3.1.", "/openapi-3.0.json": "3.0."} {
		for _, tokens := range []string{"", "secret"} {
			validDocument(t, target, version, tokens)
		}
	}
}

func validDocument(t *testing.T, target, version, tokens string) {
	t.Helper()
	s, _ := onFake(t)
	if tokens != "" {
		if err := s.tokens.UnmarshalText([]byte(tokens)); err != nil {
			t.Fatal(err)
		}
	}
	document, err := openapi3.NewLoader().LoadFromData(readAll(t, ask1(s.handler(), http.MethodGet, target, "")))
	if err != nil {
		t.Fatal(err)
	}
	if err := document.Validate(t.Context(), openapi3.EnableExamplesValidation()); err != nil || !strings.HasPrefix(document.OpenAPI, version) {
		t.Errorf("%s with tokens %q: version %s: %v", target, tokens, document.OpenAPI, err)
	}
}

// ogenModule makes the generator the only requirement of a module: the versions
// of what generated clients need are those that the generator has.
const ogenModule = "module clients\n\ngo 1.26\n\nrequire github.com/ogen-go/ogen v1.24.0\n"

// A client is generated from both documents, with every operation, and compiles.
func TestClientIsGenerated(t *testing.T) {
	if os.Getenv("TEST_OGEN") == "" {
		t.Skip("SKIPPED: no client is generated without TEST_OGEN=true: it fetches the generator and compiles for a minute")
	}
	dir := t.TempDir()
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "skipp") { // ogen leaves out what it cannot read
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	write("go.mod", []byte(ogenModule))
	s, _ := onFake(t)
	for _, name := range []string{"openapi", "openapi-3.0"} {
		write(name+".json", readAll(t, ask1(s.handler(), http.MethodGet, "/"+name+".json", "")))
		run("run", "github.com/ogen-go/ogen/cmd/ogen", "--target", name, "--package", "client", name+".json")
		client, err := os.ReadFile(filepath.Join(dir, name, "oas_client_gen.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, method := range []string{"GetTotal", "PostTotal", "GetSeries", "GetTop", "GetCounters"} {
			if !bytes.Contains(client, []byte(") "+method+"(")) {
				t.Errorf("the client of %s has no method %s", name, method)
			}
		}
	}
	run("build", "./...")
}
