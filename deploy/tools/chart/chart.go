// Package chart makes the files of the Helm chart's package: those of deploy/chart, the alerts, the
// dashboard, the schemas of the files that programs read, and a README.
package chart

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
)

// sources are the patterns of its files in the repository. What is not in deploy/chart has its plain name.
var sources = []string{"deploy/chart/*.*", "deploy/chart/templates/*", "deploy/prometheus/alerts.yml",
	"deploy/grafana/dashboards/operators.json"}

var versions = regexp.MustCompile(`(?m)^((?:appV|v)ersion: ).*`)

// Files returns the files of the package by name, with this version of the chart and of its image.
func Files(ctx context.Context, root, version string) (map[string][]byte, error) {
	repository, out := os.DirFS(root), make(map[string][]byte)
	for _, pattern := range sources {
		paths, err := fs.Glob(repository, pattern)
		if err == nil && len(paths) == 0 {
			err = fmt.Errorf("%s has no %s", root, pattern)
		}
		if err != nil {
			return nil, err
		}
		for _, file := range paths {
			name, inChart := strings.CutPrefix(file, "deploy/chart/")
			if !inChart {
				name = path.Base(file)
			}
			if out[name], err = fs.ReadFile(repository, file); err != nil {
				return nil, err
			}
		}
	}
	out["Chart.yaml"] = versions.ReplaceAll(out["Chart.yaml"], []byte("${1}"+version))
	out["README.md"] = readme(string(out["values.yaml"]))

	cmd := exec.CommandContext(ctx, "go", "run", "deploy/tools/chart/schemas/main.go")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	schemas, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("schemas of the files that programs read: %w", err)
	}
	out["values.schema.json"], err = withFiles(out["values.schema.json"], schemas)
	return out, err
}

// withFiles returns the schema of the values in which files, of $defs, are these schemas.
func withFiles(values, schemas []byte) ([]byte, error) {
	var schema, defs map[string]json.RawMessage
	if err := json.Unmarshal(values, &schema); err != nil {
		return nil, fmt.Errorf("values.schema.json: %w", err)
	}
	if err := json.Unmarshal(schema["$defs"], &defs); err != nil {
		return nil, fmt.Errorf("values.schema.json: $defs: %w", err)
	}
	defs["files"] = schemas
	all, err := json.Marshal(defs)
	if err != nil {
		return nil, err
	}
	schema["$defs"] = all
	return json.MarshalIndent(schema, "", "  ")
}

// readme returns values.yaml as a page: comments before a value as text, and the value as code.
func readme(values string) []byte {
	var out strings.Builder
	out.WriteString("# Tallyroll\n")
	for block := range strings.SplitSeq(strings.TrimSpace(values), "\n\n") {
		out.WriteString("\n")
		for strings.HasPrefix(block, "#") {
			line, rest, _ := strings.Cut(block, "\n")
			text := strings.TrimPrefix(line[1:], " ")
			if strings.HasPrefix(text, "  ") {
				text = "  " + text // an example, which Markdown indents by four
			}
			out.WriteString(text + "\n")
			block = rest
		}
		if block != "" {
			out.WriteString("\n```yaml\n" + block + "\n```\n")
		}
	}
	return []byte(out.String())
}
