package main

import (
	"bufio"
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// program is a folder below cmd.
type program struct {
	name   string
	module string // the folder of its go.mod: the repository's own, or the program's
}

// findPrograms returns all programs below cmd.
func findPrograms(root string) (out []program, err error) {
	mains, err := filepath.Glob(filepath.Join(root, "cmd/*/main.go"))
	if err != nil {
		return nil, err
	}
	for _, main := range mains {
		p := program{name: filepath.Base(filepath.Dir(main)), module: root}
		if _, err := os.Stat(filepath.Join(filepath.Dir(main), "go.mod")); err == nil {
			p.module = filepath.Dir(main)
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no program in cmd: is it the repository?", root)
	}
	return out, nil
}

// pkg is what the go command calls the program in its module.
func (p program) pkg(root string) string {
	if p.module != root {
		return "."
	}
	return "./cmd/" + p.name
}

// binary is a program that was built.
type binary struct {
	program program
	target  target
	path    string
	sum     string // SHA-256
	info    *buildinfo.BuildInfo
}

// build builds the programs for a target into dir, with the time zones of an overlay (deploy/tools/zones). A
// build on any machine gives the same bytes: without cgo, without paths, and without what git says of the
// folder, which is in the version.
func (r *release) build(ctx context.Context, t target, programs []program, dir, overlay, zones string) (out []binary,
	err error) {
	const linked = " -X tallyroll/internal/platform/release."
	flags := []string{"build", "-trimpath", "-buildvcs=false", "-overlay", filepath.Join(overlay, "overlay.json"),
		"-ldflags", "-s -w" + linked + "version=v" + r.version + linked + "revision=" + r.commit +
			linked + "zones=" + zones,
		"-o", dir + "/"}
	for module, pkgs := range byModule(programs, r.root) {
		fmt.Fprintf(os.Stderr, "building %s for %s\n", strings.Join(pkgs, " "), t)
		if _, err := r.forTarget(t).command(ctx, module, "go", append(flags, pkgs...)...); err != nil {
			return nil, err
		}
	}
	for _, p := range programs {
		b := binary{program: p, target: t, path: filepath.Join(dir, p.name)}
		if b.info, err = buildinfo.ReadFile(b.path); err != nil {
			return nil, err
		}
		if b.sum, err = hashFile(b.path); err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// byModule returns the packages of the programs of each module.
func byModule(programs []program, root string) map[string][]string {
	out := make(map[string][]string)
	for _, p := range programs {
		out[p.module] = append(out[p.module], p.pkg(root))
	}
	return out
}

// forTarget returns the release with the environment in which the go command builds for a target.
func (r release) forTarget(t target) *release {
	r.env = append(slices.Clone(r.env), "CGO_ENABLED=0", "GOOS="+t.os, "GOARCH="+t.arch, "GOFLAGS=-mod=readonly",
		"GOWORK=off", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0")
	return &r
}

// module is one whose packages are in a program.
type module struct {
	path, version string
	dir           string
	folders       map[string]bool // of packages that are in a program
	ids           []string        // of its licences, once judged
}

// modules are found by path@version.
type modules map[string]*module

// findModules adds the modules whose packages are in the programs, except for Tallyroll's own.
func (r *release) findModules(ctx context.Context, t target, programs []program, all modules) error {
	for dir, pkgs := range byModule(programs, r.root) {
		out, err := r.forTarget(t).command(ctx, dir, "go", append([]string{"list", "-deps", "-f",
			"{{with .Module}}{{if not (or .Main .Replace)}}{{.Path}}\t{{.Version}}\t{{.Dir}}\t{{$.Dir}}{{end}}{{end}}"},
			pkgs...)...)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(bytes.NewReader([]byte(out)))
		for lines.Scan() {
			f := strings.Split(lines.Text(), "\t")
			if len(f) != 4 {
				continue // a package of Go's or of ours
			}
			key := f[0] + "@" + f[1]
			if all[key] == nil {
				all[key] = &module{path: f[0], version: f[1], dir: f[2], folders: make(map[string]bool)}
			}
			all[key].folders[f[3]] = true
		}
	}
	goroot, err := r.command(ctx, r.root, "go", "env", "GOROOT", "GOVERSION")
	if err != nil {
		return err
	}
	dir, version, _ := strings.Cut(strings.TrimSpace(goroot), "\n")
	all["std"] = &module{path: "std", version: strings.TrimPrefix(version, "go"), dir: dir,
		folders: map[string]bool{dir: true}}
	return nil
}

// checkLinked returns an error if a program has a module of which no licence was collected.
func checkLinked(built []binary, all modules) error {
	for _, b := range built {
		for _, dep := range linked(b.info) {
			if all[dep] == nil {
				return fmt.Errorf("%s for %s has %s inside, which go list does not name", b.program.name, b.target, dep)
			}
		}
	}
	return nil
}

// linked returns path@version of the modules in a program, except for Tallyroll's own.
func linked(info *buildinfo.BuildInfo) (out []string) {
	for _, dep := range info.Deps {
		if dep.Replace == nil {
			out = append(out, dep.Path+"@"+dep.Version)
		}
	}
	return append(out, "std")
}
