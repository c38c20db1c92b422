package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tallyroll/deploy/tools/chart"
)

// entry is a file of an archive or a package.
type entry struct {
	name    string // with slashes
	mode    int64
	content []byte
}

// pages are what a release holds in addition to the programs, by pattern below the repository.
var pages = []string{"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "docs/*.md", "docs/start/*.md"}

// notices is the file with the licences of all that is linked.
const notices = "LICENCES.txt"

// writeNotices joins the texts: each licence asks to be handed on with the programs.
func writeNotices(texts []text) []byte {
	var out bytes.Buffer
	fmt.Fprintln(&out, "Tallyroll is licensed under the Apache License 2.0 (LICENSE). Its programs hold code of these "+
		"modules, whose licences follow:")
	for _, t := range texts {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", t.name, strings.Repeat("=", len(t.name)),
			bytes.TrimSpace(bytes.ReplaceAll(t.content, []byte("\r\n"), []byte("\n"))))
	}
	return out.Bytes()
}

// files returns the files that match the patterns, each below a folder of its own name.
func (r *release) files(patterns ...string) (out []entry, err error) {
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(r.root, pattern))
		if err != nil {
			return nil, err
		}
		if len(paths) == 0 {
			return nil, fmt.Errorf("there is no %s in %s", pattern, r.root)
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(r.root, path)
			if err != nil {
				return nil, err
			}
			out = append(out, entry{filepath.ToSlash(name), 0o644, content})
		}
	}
	return out, nil
}

// writeArchive writes the programs of a target, with what belongs to them, as a tar.gz.
func (r *release) writeArchive(t target, built []binary, texts []text) error {
	patterns := pages
	if t.os == "linux" {
		patterns = append(slices.Clone(pages), "deploy/systemd/*")
	}
	all, err := r.files(patterns...)
	if err != nil {
		return err
	}
	all = append(all, entry{notices, 0o644, writeNotices(texts)})
	for _, b := range built {
		content, err := os.ReadFile(b.path)
		if err != nil {
			return err
		}
		all = append(all, entry{b.program.name, 0o755, content})
	}
	name := fmt.Sprintf("tallyroll_%s_%s_%s", r.version, t.os, t.arch)
	return r.writeTar(name+".tar.gz", name, all)
}

// writeChart writes the Helm chart as a package of this version, whose image has the same.
func (r *release) writeChart(ctx context.Context) error {
	files, err := chart.Files(ctx, r.root, r.version)
	if err != nil {
		return err
	}
	var all []entry
	for name, content := range files {
		all = append(all, entry{name, 0o644, content})
	}
	return r.writeTar("tallyroll-"+r.version+".tgz", "tallyroll", all)
}

// writeTar writes entries into an archive, below a folder.
func (r *release) writeTar(file, folder string, all []entry) error {
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name, b.name) })

	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	archive := tar.NewWriter(zipped)
	for _, e := range all {
		// Root's, and as old as the commit, so that it depends on neither the builder nor the time.
		header := &tar.Header{Name: folder + "/" + e.name, Mode: e.mode, Size: int64(len(e.content)), ModTime: r.time,
			Uname: "root", Gname: "root", Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(e.content); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	if err := zipped.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, file), out.Bytes(), 0o644)
}
