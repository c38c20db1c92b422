package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

const testVersion = "v9.8.7-rc.1"

// A release for this machine, made twice in two folders, is the same to the byte; it can be installed on an
// empty system, its programs run there, and nothing but what the administrator added is left of it.
func TestRelease(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("NOT CHECKED: the release, which is made for Linux here")
	}
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	r := release{root: root, out: t.TempDir(), targets: []target{{runtime.GOOS, runtime.GOARCH}}, zones: zonesOf(t, "2999a"), sameCache: true}
	require.NoError(t, r.describe(t.Context(), testVersion))
	sums, err := r.make(t.Context())
	require.NoError(t, err)
	if err := r.compare(t.Context(), sums); err != nil {
		t.Error(err)
	}
	run(t, "sh", "-c", "cd "+r.out+" && sha256sum --check --strict SHA256SUMS")
	name := "tallyroll_9.8.7-rc.1_linux_" + runtime.GOARCH
	for _, want := range []string{"/LICENSE", "/LICENCES.txt", "/dev", "/query", "/promql", "/rls", "/tallyroll", "/deploy/systemd/tallyroll@.service"} {
		if !slices.Contains(strings.Fields(run(t, "tar", "-tzf", filepath.Join(r.out, name+".tar.gz"))), name+want) {
			t.Errorf("the archive has no %s", want)
		}
	}
	query := run(t, "tar", "-xzOf", filepath.Join(r.out, name+".tar.gz"), name+"/query")
	for text, has := range map[string]bool{"2999a": true, "Test/Tomorrow": true, "America/Vancouver": false} {
		require.Equal(t, has, strings.Contains(query, text), "time zones of the day, and not of Go's release: %s", text)
	}
	checkSBOM(t, filepath.Join(r.out, "tallyroll_9.8.7-rc.1.cdx.json"))
	t.Run("install", func(t *testing.T) { install(t, filepath.Join(r.out, "tallyroll_9.8.7-rc.1_"+runtime.GOARCH+".deb")) })
}

// zonesOf returns a folder with one time zone, as of a version.
func zonesOf(t *testing.T, version string) string {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "Test"), 0o755))
	for file, text := range map[string]string{"tzdata.zi": "# version " + version + "\n", "Test/Tomorrow": "TZif2"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	return dir
}

// A release is not made with time zones that are older than those of Go itself.
func TestOldZonesAreRefused(t *testing.T) {
	for version, want := range map[string]string{"2025b": "update tzdata", "2999a": "2999a"} {
		out, err := exec.CommandContext(t.Context(), "go", "run", "../zones", "-dir", zonesOf(t, version), "-out", t.TempDir()).CombinedOutput()
		require.Equal(t, version == want, err == nil, "%s", out)
		require.Contains(t, string(out), want)
	}
}

// The package is a chart of the release's version, and its image, too.
func TestChartPackage(t *testing.T) {
	r := release{root: "../../..", out: t.TempDir(), version: "9.8.7"}
	require.NoError(t, r.writeChart(t.Context()))
	chart, err := loader.LoadFile(filepath.Join(r.out, "tallyroll-9.8.7.tgz"))
	require.NoError(t, err)
	require.NoError(t, chart.Validate())
	require.Equal(t, []string{"tallyroll", "9.8.7", "9.8.7"}, []string{chart.Name(), chart.Metadata.Version, chart.AppVersion()})
	require.NotEmpty(t, chart.Values)
	require.NotEmpty(t, chart.Schema)
	templates, err := filepath.Glob("../../chart/templates/*")
	require.NoError(t, err)
	require.Len(t, chart.Templates, len(templates))
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	var failed bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out, failed.Bytes())
	}
	return string(out)
}

// checkSBOM looks for what every program needs, with its licence.
func checkSBOM(t *testing.T, path string) {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var bom cdx.BOM
	require.NoError(t, json.NewDecoder(f).Decode(&bom))
	got := make(map[string]string)
	for _, c := range *bom.Components {
		if c.Licenses != nil {
			got[c.Name] = (*c.Licenses)[0].License.ID
		}
	}
	for name, licence := range map[string]string{"std": "BSD-3-Clause", "github.com/nats-io/nats.go": "Apache-2.0", "github.com/rs/zerolog": "MIT", "github.com/prometheus/prometheus": "Apache-2.0"} {
		if got[name] != licence {
			t.Errorf("%s has the licence %q in the SBOM, want %s", name, got[name], licence)
		}
	}
}

// install puts the package into a system without anything else: that of TEST_DEBIAN_ROOT, which debootstrap
// made and which has /proc mounted, or one with a shell for the package's scripts.
func install(t *testing.T, deb string) {
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("NOT CHECKED: the package, because there is no dpkg on the PATH")
	}
	if os.Getuid() != 0 {
		t.Skip("NOT CHECKED: the package, because only root may install it into a folder")
	}
	system := os.Getenv("TEST_DEBIAN_ROOT")
	if system == "" {
		system = emptySystem(t)
	}
	before := tree(t, system)
	dpkg := func(args ...string) {
		t.Helper()
		run(t, "dpkg", append([]string{"--root=" + system}, args...)...)
	}
	dpkg("--install", deb)
	for _, program := range []string{"ingest", "query", "collect", "promql", "rls", "watch", "publish", "redrive", "audit", "dev"} {
		if got, want := run(t, "chroot", system, "/usr/bin/tallyroll", program, "--version"), program+" "+testVersion+"\n"; got != want {
			t.Errorf("%s --version says %q, want %q", program, got, want)
		}
	}
	for path, mode := range map[string]fs.FileMode{
		"etc/tallyroll/credentials": fs.ModeDir | 0o700, "etc/tallyroll/common.env": 0o600, "etc/tallyroll/query.env": 0o600,
		"usr/lib/systemd/system/tallyroll@.service": 0o644, "usr/share/doc/tallyroll/copyright": 0o644,
	} {
		if info, err := os.Stat(filepath.Join(system, path)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v (%v), want mode %v", path, info, err, mode)
		}
	}
	for _, path := range []string{"etc/tallyroll/credentials/nats.creds", "etc/tallyroll/rules.yml"} {
		require.NoError(t, os.WriteFile(filepath.Join(system, path), []byte("the administrator's\n"), 0o600))
	}
	dpkg("--install", deb) // as an upgrade does
	dpkg("--remove", "tallyroll")
	dpkg("--purge", "tallyroll")
	var left []string
	for _, path := range tree(t, system) {
		if !slices.Contains(before, path) && !strings.HasPrefix(path, "var/") {
			left = append(left, path)
		}
	}
	if want := []string{"etc/tallyroll", "etc/tallyroll/credentials", "etc/tallyroll/credentials/nats.creds", "etc/tallyroll/rules.yml"}; !slices.Equal(left, want) {
		t.Errorf("what is left is %v, want %v", left, want)
	}
	if err := os.RemoveAll(filepath.Join(system, "etc/tallyroll")); err != nil {
		t.Error(err)
	}
}

// emptySystem is a folder with what dpkg needs, and with a shell.
func emptySystem(t *testing.T) string {
	system := t.TempDir()
	for _, dir := range []string{"bin", "etc", "usr/bin", "usr/lib", "usr/share/doc", "var/lib/dpkg/info", "var/lib/dpkg/updates", "dev", "tmp"} {
		require.NoError(t, os.MkdirAll(filepath.Join(system, dir), 0o755))
	}
	for _, file := range []string{"var/lib/dpkg/status", "var/lib/dpkg/available", "dev/null"} {
		require.NoError(t, os.WriteFile(filepath.Join(system, file), nil, 0o644))
	}
	// Without /proc mounted, this is how tallyroll finds the programs in its own directory.
	require.NoError(t, os.Mkdir(filepath.Join(system, "proc"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(system, "proc/self"), 0o755))
	require.NoError(t, os.Symlink("/usr/lib/tallyroll/tallyroll", filepath.Join(system, "proc/self/exe")))
	// The shell, and the libraries that it is linked to.
	needed := append(regexp.MustCompile(`(?m)/\S+`).FindAllString(run(t, "ldd", "/bin/sh"), -1), "/bin/sh")
	for _, path := range needed {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		to := filepath.Join(system, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(t, os.WriteFile(to, content, 0o755))
	}
	return system
}

// tree returns the paths of all files and folders.
func tree(t *testing.T, dir string) (out []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if name == "proc" {
			return fs.SkipDir
		}
		if name != "." {
			out = append(out, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestJudge(t *testing.T) {
	bsd, err := os.ReadFile(filepath.Join(strings.TrimSpace(run(t, "go", "env", "GOROOT")), "LICENSE"))
	require.NoError(t, err)
	const gpl = "This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version. This program is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY; without even the implied warranty of MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the GNU General Public License for more details."
	for _, c := range []struct{ name, file, content, within, want string }{
		{"allowed", "LICENSE", string(bsd), "", ""},
		{"not allowed", "COPYING", gpl, "", "is not allowed"},
		{"unknown", "LICENSE.md", "You may use it on Sundays.", "", "unknown:"},
		{"none", "README.md", "free!", "", "no licence was found"},
		{"in a folder", "LICENSE", string(bsd), gpl, "vendored/LICENSE: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			within := filepath.Join(dir, "vendored")
			require.NoError(t, os.Mkdir(within, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, c.file), []byte(c.content), 0o644))
			if c.within != "" {
				require.NoError(t, os.WriteFile(filepath.Join(within, c.file), []byte(c.within), 0o644))
			}
			_, err := modules{"m@v1": {path: "m", version: "v1", dir: dir, folders: map[string]bool{within: true}}}.judge()
			if err == nil && c.want != "" || err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestVersions(t *testing.T) {
	for version, ok := range map[string]bool{"v0.1.0": true, "1.2.3": true, "v1.2.3-rc.1": true, "v1.2": false, "v1.2.3-4-gabc": false, "v1.2.3-dirty+x": false, "abc": false} {
		if versions.MatchString(version) != ok {
			t.Errorf("%s: allowed %v, want %v", version, !ok, ok)
		}
	}
}
