// Zones writes what makes go build embed this machine's time zones in place of those in time/tzdata, which
// are as old as the release of Go. It prints their version, for the linker's -X.
//
//	go run deploy/tools/zones/main.go -out /tmp/zones
//
// It refuses zones that are older than Go's, or than those that apt offers. It needs nothing but Go, so that
// the image's build can run it without the modules of the other tools.
package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	dir := flag.String("dir", "/usr/share/zoneinfo", "the time zones, with their tzdata.zi or +VERSION")
	out := flag.String("out", "", "the folder for the overlay and the zones as a Go file")
	flag.Parse()
	version, err := run(*dir, *out)
	if err != nil {
		fmt.Fprintf(os.Stderr, "zones: %v\n", err)
		os.Exit(1)
	}
	fmt.Println(version)
}

func run(dir, out string) (version string, err error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	goroot := strings.TrimSpace(string(root))
	if version, err = check(dir, goroot); err != nil {
		return "", err
	}
	zipped, err := pack(dir)
	if err != nil {
		return "", err
	}
	file := filepath.Join(out, "zzipdata.go")
	overlay, err := json.Marshal(map[string]any{
		"Replace": map[string]string{filepath.Join(goroot, "src/time/tzdata/zzipdata.go"): file}})
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	source := fmt.Appendf(nil, "package tzdata\n\nconst zipdata = %+q\n", zipped)
	if err := os.WriteFile(file, source, 0o644); err != nil {
		return "", err
	}
	return version, os.WriteFile(filepath.Join(out, "overlay.json"), overlay, 0o644)
}

// check returns the version of the zones in dir, or an error if newer ones are known.
func check(dir, goroot string) (version string, err error) {
	for file, form := range map[string]string{"tzdata.zi": `^# version (\S+)`, "+VERSION": `^(\S+)`} {
		if text, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
			version = find(form, text)
		}
	}
	if version == "" {
		return "", fmt.Errorf("%s has no time zones with a version (tzdata.zi, +VERSION): install tzdata", dir)
	}
	script, err := os.ReadFile(filepath.Join(goroot, "lib/time/update.bash"))
	if err != nil {
		return "", err
	}
	// Without apt, nothing is offered.
	offered, _ := exec.Command("apt-cache", "policy", "tzdata").Output()
	for from, other := range map[string]string{"Go brings": find(`(?m)^DATA=(\S+)`, script),
		"apt offers": find(`Candidate: (\d+[a-z]*)`, offered)} {
		if other > version { // 2025c, 2026a
			return "", fmt.Errorf("the time zones in %s are %s, and %s %s: update tzdata", dir, version, from, other)
		}
	}
	return version, nil
}

func find(form string, text []byte) string {
	if found := regexp.MustCompile(form).FindSubmatch(text); found != nil {
		return string(found[1])
	}
	return ""
}

// pack returns the zones as time/tzdata reads them: a zip without compression.
func pack(dir string) ([]byte, error) {
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (name == "posix" || name == "right") { // the same zones once more
			return fs.SkipDir
		}
		if d.IsDir() || name[0] < 'A' || name[0] > 'Z' {
			return nil
		}
		text, err := os.ReadFile(path) // also behind a link
		if err != nil {
			return err
		}
		size := uint64(len(text))
		w, err := archive.CreateRaw(&zip.FileHeader{Name: filepath.ToSlash(name), Method: zip.Store,
			CompressedSize64: size, UncompressedSize64: size, CRC32: crc32.ChecksumIEEE(text)})
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = archive.Close()
	return out.Bytes(), err
}
