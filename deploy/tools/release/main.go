// Release makes what a release consists of, from the sources as they are: static programs for each target in
// an archive, a Debian package, the Helm chart, the list of what is inside (SBOM) and the checksums, all of
// it below bin/release. It asks a service only for modules. The same commit gives the same bytes on any
// machine with the same Go and the same time zones.
//
//	go run ./release -root ../.. -version v0.1.0
//
// main ─▶ programs (find, build) ─▶ licences (collect, judge) ─▶ archive, deb, chart, sbom ─▶ SHA256SUMS
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	root := flag.String("root", ".", "the repository")
	out := flag.String("out", "", "where the release is made; bin/release of the repository if empty")
	version := flag.String("version", "", "the version, such as v0.1.0; if empty, the commit's tag, or else one made "+
		"of its time")
	targets := flag.String("targets", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64",
		"what to build for, comma-separated")
	zones := flag.String("zones", "/usr/share/zoneinfo", "the time zones that the programs embed")
	again := flag.Bool("again", false, "make all of it a second time, from a copy of the sources elsewhere and with "+
		"an empty build cache, and compare")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := runRelease(ctx, *root, *out, *version, *targets, *zones, *again); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func runRelease(ctx context.Context, root, out, version, targets, zones string, again bool) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	r := release{root: root, out: out, zones: zones}
	if r.out == "" {
		r.out = filepath.Join(root, "bin/release")
	}
	if r.targets, err = parseTargets(targets); err != nil {
		return err
	}
	if err := r.describe(ctx, version); err != nil {
		return err
	}
	sums, err := r.make(ctx)
	if err != nil || !again {
		return err
	}
	return r.compare(ctx, sums)
}

// target is an operating system and a processor, in Go's names.
type target struct{ os, arch string }

func (t target) String() string { return t.os + "/" + t.arch }

func parseTargets(text string) (out []target, err error) {
	for one := range strings.SplitSeq(text, ",") {
		system, arch, ok := strings.Cut(strings.TrimSpace(one), "/")
		if !ok {
			return nil, fmt.Errorf("target %q: must be os/arch, such as linux/amd64", one)
		}
		out = append(out, target{system, arch})
	}
	return out, nil
}

// release is what one run makes.
type release struct {
	root, out string
	targets   []target
	zones     string    // the folder of the time zones that the programs embed
	version   string    // without the v
	commit    string    // empty outside of a repository
	time      time.Time // of the commit: of all files, too
	env       []string  // for the go command, in addition to the process's own
	sameCache bool      // compare builds from the first build's cache: seconds in place of minutes, and proves less
}

// versions are semantic versions; what follows the number begins with a letter, so that dpkg sorts it before
// the release.
var versions = regexp.MustCompile(`^v?([0-9]+\.[0-9]+\.[0-9]+(-[a-z][0-9A-Za-z.]*)?)$`)

// describe sets the version, the commit and the time. Without a version it is one before any release.
func (r *release) describe(ctx context.Context, version string) error {
	seconds, commit := os.Getenv("SOURCE_DATE_EPOCH"), ""
	if out, err := r.command(ctx, r.root, "git", "log", "-1", "--format=%ct %H"); err == nil {
		committed, hash, _ := strings.Cut(strings.TrimSpace(out), " ")
		commit = hash
		if seconds == "" {
			seconds = committed
		}
	} else if seconds == "" {
		return fmt.Errorf("the time of the sources is unknown: run it in a repository, or set SOURCE_DATE_EPOCH (%w)",
			err)
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH=%q: must be seconds since 1970", seconds)
	}
	r.time, r.commit = time.Unix(unix, 0).UTC(), commit
	if version == "" {
		version = "0.0.0-dev." + r.time.Format("20060102150405")
		tag, err := r.command(ctx, r.root, "git", "describe", "--tags", "--exact-match", "--match", "v*")
		if err == nil {
			version = strings.TrimSpace(tag)
		}
	}
	found := versions.FindStringSubmatch(version)
	if found == nil {
		return fmt.Errorf("version %q: must be v1.2.3, or v1.2.3-rc.1", version)
	}
	r.version = found[1]
	return nil
}

// make makes all files of the release and returns the checksum of each.
func (r *release) make(ctx context.Context) (map[string]string, error) {
	programs, err := findPrograms(r.root)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "tallyroll-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return nil, err
	}
	overlay := filepath.Join(work, "zones")
	zones, err := r.command(ctx, filepath.Join(r.root, "deploy/tools"), "go", "run", "./zones", "-dir", r.zones, "-out",
		overlay)
	if err != nil {
		return nil, err
	}
	all := make(modules)
	var built []binary
	for _, t := range r.targets {
		files, err := r.build(ctx, t, programs, filepath.Join(work, t.os+"_"+t.arch), overlay, strings.TrimSpace(zones))
		if err != nil {
			return nil, err
		}
		if err := r.findModules(ctx, t, programs, all); err != nil {
			return nil, err
		}
		built = append(built, files...)
	}
	texts, err := all.judge()
	if err != nil {
		return nil, err
	}
	if err := checkLinked(built, all); err != nil {
		return nil, err
	}
	for _, t := range r.targets {
		files := slices.DeleteFunc(slices.Clone(built), func(b binary) bool { return b.target != t })
		if err := r.writeArchive(t, files, texts); err != nil {
			return nil, err
		}
		if t.os == "linux" {
			if err := r.writeDeb(t, files, texts, work); err != nil {
				return nil, err
			}
		}
	}
	if err := r.writeChart(ctx); err != nil {
		return nil, err
	}
	if err := r.writeSBOM(built, all); err != nil {
		return nil, err
	}
	return r.writeSums()
}

// writeSums writes SHA256SUMS, as sha256sum -c reads it, and prints it.
func (r *release) writeSums() (map[string]string, error) {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return nil, err
	}
	sums, text := make(map[string]string), ""
	for _, e := range entries {
		sum, err := hashFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return nil, err
		}
		sums[e.Name()] = sum
		text += sum + "  " + e.Name() + "\n"
	}
	fmt.Print(text)
	return sums, os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(text), 0o644)
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// compare makes the release again elsewhere, and returns an error that names the files that differ.
func (r *release) compare(ctx context.Context, sums map[string]string) error {
	dir, err := os.MkdirTemp("", "tallyroll-again-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	other := *r
	other.root, other.out = filepath.Join(dir, "elsewhere/sources"), filepath.Join(dir, "release")
	if err := r.copySources(ctx, other.root); err != nil {
		return err
	}
	if !r.sameCache {
		other.env = []string{"GOCACHE=" + filepath.Join(dir, "cache")}
	}
	again, err := other.make(ctx)
	if err != nil {
		return err
	}
	var differ []string
	for name, sum := range sums {
		if again[name] != sum {
			differ = append(differ, name)
		}
	}
	if len(differ) > 0 || len(again) != len(sums) {
		slices.Sort(differ)
		return fmt.Errorf("made again, these differ: %s", strings.Join(differ, ", "))
	}
	fmt.Printf("made again elsewhere, all %d files are the same\n", len(sums))
	return nil
}

// copySources copies the files that git has or would take.
func (r *release) copySources(ctx context.Context, to string) error {
	list, err := r.command(ctx, r.root, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return fmt.Errorf("-again copies what git lists: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(list, "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(r.root, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed and not committed
		}
		if err != nil {
			return err
		}
		path := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// command returns the standard output of a command, and its standard error within the error.
func (r *release) command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), r.env...)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s in %s: %w\n%s", strings.Join(cmd.Args, " "), dir, err, exit.Stderr)
	}
	return string(out), err
}
