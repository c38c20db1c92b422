package deploy_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

const version = "v0.0.0-test"

// needEngine skips the test where there is no docker engine.
func needEngine(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skip("NOT CHECKED: the container image, because there is no docker on the PATH")
	}
	if _, err := tryIn("", "docker", "info"); err != nil {
		t.Skipf("NOT CHECKED: the container image, because the docker engine does not answer: %v", err)
	}
}

// instructions are the lines of a Dockerfile: continued lines joined, comments left out.
func instructions(text string) []string {
	var out []string
	var line strings.Builder
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		rest, more := strings.CutSuffix(l, "\\")
		line.WriteString(rest)
		if !more {
			out = append(out, line.String())
			line.Reset()
		}
	}
	return out
}

// stages cuts the instructions at each FROM.
func stages(all []string) [][]string {
	var out [][]string
	for _, in := range all {
		if strings.HasPrefix(in, "FROM ") {
			out = append(out, nil)
		}
		if len(out) > 0 {
			out[len(out)-1] = append(out[len(out)-1], in)
		}
	}
	return out
}

// lastStage fills dir with a build context for the Dockerfile's last stage
// alone. What it copies from the build stage is made here by that stage's own
// build line; local gives the place here of a path there.
func lastStage(t *testing.T, dir string, stage []string, local func(string) string) {
	t.Helper()
	if stage[0] != "FROM scratch" {
		t.Fatalf("the last stage begins with %q: this test needs one that loads no image", stage[0])
	}
	for i, in := range stage {
		rest, ok := strings.CutPrefix(in, "COPY --from=build ")
		if !ok {
			continue
		}
		words := strings.Fields(rest)
		line := "COPY"
		for _, source := range words[:len(words)-1] {
			name := path.Base(source)
			b, err := os.ReadFile(local(source))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o755))
			line += " " + name
		}
		stage[i] = line + " " + words[len(words)-1]
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(strings.Join(stage, "\n")+"\n"), 0o644))
}

// buildLine runs in the repository what the Dockerfile runs to make its results, which are in out.
func buildLine(t *testing.T, stage []string, out string) {
	t.Helper()
	zones := t.TempDir() // not this machine's, which may be old
	for file, text := range map[string]string{"tzdata.zi": "# version 2999a\n", "UTC": "TZif2"} {
		require.NoError(t, os.WriteFile(filepath.Join(zones, file), []byte(text), 0o644))
	}
	ran := 0
	for _, in := range stage {
		line, ok := strings.CutPrefix(in, "RUN ")
		if !ok || !strings.Contains(line, "/out/") {
			continue
		}
		line = strings.ReplaceAll(line, "/out/", out+"/")
		command(t, root(t), "sh", "-c", "VERSION="+version+"; ZONES="+zones+"; "+line)
		ran++
	}
	if ran < 2 {
		t.Fatal("the first stage of deploy/Dockerfile does not make programs and their licences")
	}
}

// certificates is a file of certificate authorities: this machine's where it
// has one in the usual place, otherwise an empty one, since nothing here uses it.
func certificates(t *testing.T) string {
	t.Helper()
	for _, file := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"} {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	file := filepath.Join(t.TempDir(), "ca-certificates.crt")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	return file
}

// image builds an image from the context in dir, removed when the test ends.
func image(t *testing.T, dir string, args ...string) string {
	t.Helper()
	name := "tallyroll-test-" + strings.ToLower(rand.Text())
	t.Cleanup(func() {
		if _, err := tryIn("", "docker", "image", "rm", "--force", name); err != nil {
			t.Logf("remove the image: %v", err)
		}
	})
	command(t, dir, "docker", slices.Concat([]string{"build", "--force-rm", "--tag", name}, args, []string{"."})...)
	return name
}

// locked are the rights that compose.yml leaves to the programs. None of the
// checks here needs a network other than the container's own loopback.
var locked = []string{"--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"}

// programs builds the image with the programs.
func programs(t *testing.T) string {
	t.Helper()
	parts := stages(instructions(read(t, filepath.Join(root(t), "deploy/Dockerfile"))))
	if len(parts) != 2 {
		t.Fatalf("deploy/Dockerfile has %d stages, want 2", len(parts))
	}
	out, dir := t.TempDir(), t.TempDir()
	buildLine(t, parts[0], out)
	lastStage(t, dir, parts[1], func(source string) string {
		if strings.HasPrefix(source, "/out/") {
			return filepath.Join(out, path.Base(source))
		}
		return certificates(t)
	})
	return image(t, dir, "--build-arg", "VERSION="+version, "--build-arg", "REVISION=0012ab")
}

func TestImage(t *testing.T) {
	t.Parallel()
	needEngine(t)
	img := programs(t)

	t.Run("user and labels", func(t *testing.T) {
		config := command(t, "", "docker", "inspect", "--format", "{{.Config.User}} {{json .Config.Labels}}", img)
		for _, want := range []string{"65532:65532 ", `image.version":"` + version + `"`, `image.revision":"0012ab"`, `image.licenses":"Apache-2.0"`} {
			require.Contains(t, config, want)
		}
	})
	t.Run("licences", func(t *testing.T) {
		id := strings.TrimSpace(command(t, "", "docker", "create", img))
		text := command(t, "", "sh", "-c", "docker cp "+id+":/LICENCES.txt - ; docker rm "+id+" >/dev/null")
		for _, want := range []string{"Apache License", "/nats.go@", "/prometheus@", "/klauspost/compress@", "/grpc@", "xxhash/LICENSE", "The Go Authors"} {
			require.Contains(t, text, want, "the licences")
		}
	})
	run := func(args ...string) (string, error) {
		return tryIn("", "docker", slices.Concat([]string{"run", "--rm"}, locked, []string{img}, args)...)
	}
	for i, program := range stack.Programs {
		t.Run(program+" --version", func(t *testing.T) {
			path := "/" + program
			if i == 0 { // by its name
				path = program
			}
			got, err := run(path, "--version")
			require.NoError(t, err)
			require.Equal(t, program+" "+version+"\n", got)
		})
	}
	t.Run("without a program", func(t *testing.T) {
		out, err := run()
		require.Equal(t, 2, exitCode(err))
		require.Contains(t, out, "ingest --help")
	})
	t.Run("dev", func(t *testing.T) { devAnswers(t, img) })
	t.Run("collect by compose", func(t *testing.T) { collectKnowsTokens(t, img) })
	t.Run("two queries by compose", func(t *testing.T) { twoQueries(t, img) })
	for _, c := range []struct{ program, addr string }{{"ingest", "INGEST_ADDR=0.0.0.0:8082"}, {"query", "QUERY_ADDR=0.0.0.0:8080"}, {"collect", "COLLECT_ADDR=0.0.0.0:8081"}, {"promql", "PROMQL_ADDR=0.0.0.0:9091"}} {
		t.Run(c.program+" --healthcheck", func(t *testing.T) { health(t, img, c.program, c.addr) })
	}
}

// devAnswers runs all in one container, with a folder for its data: query is well and is ready.
func devAnswers(t *testing.T, img string) {
	out, err := tryIn("", "docker", slices.Concat([]string{"run", "--rm"}, locked, []string{img, "dev"})...)
	require.Equal(t, 1, exitCode(err), out)
	require.ErrorContains(t, err, "add --tmpfs /tmp")
	name := img + "-dev"
	command(t, "", "docker", slices.Concat([]string{"run", "--detach", "--name", name, "--tmpfs", "/tmp"}, locked, []string{img, "dev", "--host", "0.0.0.0"})...)
	t.Cleanup(func() { command(t, "", "docker", "rm", "--force", name) })
	stack.Eventually(t, "dev to be up", func() (bool, string) {
		logs, err := tryIn("", "docker", "logs", name)
		return strings.Contains(logs, "query    http://127.0.0.1:8080/docs"), fmt.Sprint(logs, err)
	})
	command(t, "", "docker", "exec", "--env", "QUERY_ADDR=127.0.0.1:8080", name, "/query", "--healthcheck")
	command(t, "", "docker", "stop", "--time", "300", name)
	require.Equal(t, "0\n", command(t, "", "docker", "inspect", "--format", "{{.State.ExitCode}}", name), "after SIGTERM")
}

// health runs a program that reaches neither NATS nor Redis: it is well but not ready, as its own check
// reports, and SIGTERM ends it.
func health(t *testing.T, img, program, addr string) {
	name := img + "-" + program
	t.Cleanup(func() {
		if t.Failed() {
			logs, err := tryIn("", "docker", "logs", name)
			t.Logf("log of %s: %s %v", program, logs, err)
		}
		if _, err := tryIn("", "docker", "rm", "--force", name); err != nil {
			t.Logf("remove the container: %v", err)
		}
	})
	command(t, "", "docker", slices.Concat([]string{"run", "--detach", "--name", name, "--env", addr}, locked, []string{"--entrypoint", "/" + program, img})...)
	stack.Eventually(t, program+" --healthcheck", func() (bool, string) {
		_, err := tryIn("", "docker", "exec", name, "/"+program, "--healthcheck")
		return err == nil, fmt.Sprint(err)
	})
	_, err := tryIn("", "docker", "exec", "--env", strings.Replace(addr, "0.0.0.0:", "127.0.0.1:1", 1), name, "/"+program, "--healthcheck")
	require.Equal(t, 1, exitCode(err), "where nobody listens: %v", err)
	command(t, "", "docker", "stop", "--time", "300", name)
	require.Equal(t, "0\n", command(t, "", "docker", "inspect", "--format", "{{.State.ExitCode}}", name), "after SIGTERM")
}

// exitCode is that of a command that ended with one; -1: it did not.
func exitCode(err error) int {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// TestContext sees that .dockerignore lets in what the build needs and nothing else.
func TestContext(t *testing.T) {
	t.Parallel()
	needEngine(t)
	file := filepath.Join(t.TempDir(), "Dockerfile")
	require.NoError(t, os.WriteFile(file, []byte("FROM scratch\nCOPY . /\nCMD [\"/none\"]\n"), 0o644))
	img := image(t, root(t), "--file", file)
	id := strings.TrimSpace(command(t, "", "docker", "create", img))
	t.Cleanup(func() {
		if _, err := tryIn("", "docker", "rm", "--force", id); err != nil {
			t.Logf("remove the container: %v", err)
		}
	})
	names := strings.Fields(command(t, "", "sh", "-c", "docker export "+id+" | tar -t"))
	for _, want := range []string{"go.mod", "go.sum", "LICENSE", "cmd/promql/go.mod", "cmd/promql/go.sum", "cmd/rls/go.mod", "cmd/rls/go.sum", "internal/platform/program/main.go", "cmd/ingest/main.go", "cmd/collect/main.go"} {
		if !slices.Contains(names, want) {
			t.Errorf("the build would lack %s", want)
		}
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, ".git/") || strings.HasPrefix(name, "tests/") {
			t.Errorf("%s is sent to the build", name)
		}
	}
}
