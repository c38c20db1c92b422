package main

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

// Where the package puts things. The programs have plain names, such as query: they are in one directory, and
// the command tallyroll runs them.
const (
	debPrograms = "/usr/lib/tallyroll/"
	debCommand  = "/usr/bin/tallyroll"
	debUnits    = "/usr/lib/systemd/system/"
	debSettings = "/etc/tallyroll/"
	debPages    = "/usr/share/doc/tallyroll/"
)

// writeDeb writes the package of a target. Files come from work, where those that are not built are written
// first.
func (r *release) writeDeb(t target, built []binary, texts []text, work string) error {
	work = filepath.Join(work, "deb_"+t.arch)
	var contents files.Contents
	add := func(to, kind string, mode os.FileMode, content []byte) error {
		from := filepath.Join(work, to)
		if err := os.MkdirAll(filepath.Dir(from), 0o755); err != nil {
			return err
		}
		contents = append(contents, &files.Content{Source: from, Destination: to, Type: kind,
			FileInfo: &files.ContentFileInfo{Mode: mode, MTime: r.time, Owner: "root", Group: "root"}})
		return os.WriteFile(from, content, 0o644)
	}
	for _, b := range built {
		content, err := os.ReadFile(b.path)
		if err != nil {
			return err
		}
		if err := add(debPrograms+b.program.name, "", 0o755, content); err != nil {
			return err
		}
	}
	all, err := r.files(append(pages, "deploy/systemd/*")...)
	if err != nil {
		return err
	}
	for _, e := range all {
		to, kind, mode := debPages+path.Base(e.name), "", os.FileMode(0o644)
		switch path.Ext(e.name) {
		case ".service":
			to = debUnits + path.Base(e.name)
		case ".env": // which may hold secrets, and is the administrator's
			to, kind, mode = debSettings+path.Base(e.name), files.TypeConfigNoReplace, 0o600
		}
		if err := add(to, kind, mode, e.content); err != nil {
			return err
		}
	}
	// Small systems leave out /usr/share/doc, except for files of this name.
	copyright := append(writeNotices(texts), '\n')
	licence, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	if err := add(debPages+"copyright", "", 0o644, append(copyright, licence...)); err != nil {
		return err
	}
	at := func(mode os.FileMode) *files.ContentFileInfo {
		return &files.ContentFileInfo{Mode: mode, MTime: r.time, Owner: "root", Group: "root"}
	}
	contents = append(contents,
		&files.Content{Source: "../lib/tallyroll/tallyroll", Destination: debCommand, Type: files.TypeSymlink,
			FileInfo: at(0o777)},
		&files.Content{Destination: debSettings + "credentials", Type: files.TypeDir, FileInfo: at(0o700)},
	)
	scripts := filepath.Join(r.root, "deploy/deb")
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "tallyroll", Arch: t.arch, Platform: "linux", Version: r.version, Section: "net", Priority: "optional",
		Maintainer: "The Tallyroll authors", License: "Apache-2.0", MTime: r.time, DisableGlobbing: true,
		Description: "Rolling-window counters, exact, from NATS JetStream into Redis\nWorkers count hits from " +
			"streams, each once, and a service answers over HTTP.",
		Overridables: nfpm.Overridables{
			Recommends: []string{"ca-certificates", "tzdata"}, Suggests: []string{"redis-server"}, Contents: contents,
			Scripts: nfpm.Scripts{PostInstall: filepath.Join(scripts, "postinst.sh"),
				PreRemove: filepath.Join(scripts, "prerm.sh"), PostRemove: filepath.Join(scripts, "postrm.sh")},
		},
	})
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return fmt.Errorf("package for %s: %w", t, err)
	}
	var out bytes.Buffer
	if err := deb.Default.Package(info, &out); err != nil {
		return fmt.Errorf("package for %s: %w", t, err)
	}
	name := strings.ReplaceAll(deb.Default.ConventionalFileName(info), "~", "-") // which many servers of files rename
	return os.WriteFile(filepath.Join(r.out, name), out.Bytes(), 0o644)
}
