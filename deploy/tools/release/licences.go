package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowed lists the licences that a linked module may have: they require that their text is shipped with the
// programs, and no more.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "ISC", "MIT", "MIT-0", "Unlicense",
	"CC0-1.0"}

// Files of these names come with a licence, and give or keep rights. They are shipped, and not judged.
var beside = regexp.MustCompile(`(?i)^(notice|patents|authors)`)

// licenceFile is how a file with a licence is named.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-._].*)?$`)

// enough is the least percentage of a text's words that must be those of known licences. Copyright lines are
// not.
const enough = 75

// text is a file that goes with the programs.
type text struct {
	name    string // such as github.com/x/y@v1.2.3/LICENSE
	content []byte
}

// judge collects the texts of all licences, and returns an error that names each module without one that is
// allowed.
func (m modules) judge() (out []text, err error) {
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		texts, err := m[key].texts()
		if err != nil {
			return nil, err
		}
		m[key].ids = nil
		for _, one := range texts {
			if beside.MatchString(filepath.Base(one.name)) {
				continue
			}
			ids, why := identify(one.content)
			if why != "" {
				wrong = append(wrong, one.name+": "+why)
			}
			m[key].ids = append(m[key].ids, ids...)
		}
		slices.Sort(m[key].ids)
		m[key].ids = slices.Compact(m[key].ids)
		if len(m[key].ids) == 0 {
			wrong = append(wrong, key+": no licence was found")
		}
		out = append(out, texts...)
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("licences that a release may not have (allowed: %s):\n  %s", strings.Join(allowed, ", "),
			strings.Join(wrong, "\n  "))
	}
	return out, nil
}

// texts reads the licences in the module's folder, and in the folders between it and each package that is in
// a program: code of others in a folder of its own often brings its licence along.
func (m *module) texts() (out []text, err error) {
	folders := map[string]bool{m.dir: true}
	for folder := range m.folders {
		for ; strings.HasPrefix(folder, m.dir) && !folders[folder]; folder = filepath.Dir(folder) {
			folders[folder] = true
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, fmt.Errorf("licences of %s: %w", m.path, err)
		}
		for _, e := range entries {
			if !e.Type().IsRegular() || !licenceFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
				continue
			}
			content, err := os.ReadFile(filepath.Join(folder, e.Name()))
			if err != nil {
				return nil, err
			}
			within, err := filepath.Rel(m.dir, folder)
			if err != nil {
				return nil, err
			}
			out = append(out, text{filepath.ToSlash(filepath.Join(m.path+"@"+m.version, within, e.Name())), content})
		}
	}
	return out, nil
}

// identify returns the licences that a text holds, and why it is not allowed if it is not.
func identify(content []byte) (ids []string, why string) {
	found := licensecheck.Scan(content)
	for _, match := range found.Match {
		if !match.IsURL && !slices.Contains(ids, match.ID) {
			ids = append(ids, match.ID)
		}
	}
	if found.Percent < enough {
		return ids, fmt.Sprintf("unknown: %.0f %% of it are words of a licence", found.Percent)
	}
	for _, id := range ids {
		if !slices.Contains(allowed, id) {
			return ids, id + " is not allowed"
		}
	}
	return ids, ""
}
