// Package layout tests which packages may depend on which.
package layout

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// dependencies lists what a package of this module imports, directly or not, without the standard library.
func dependencies(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "tallyroll/"+pkg).Output()
	require.NoError(t, err)
	return strings.Fields(string(out))
}

// A program links no client of a server that it never speaks to, and no server.
func TestProgramsLinkNoClientThatTheyDoNotUse(t *testing.T) {
	t.Parallel()
	for pkg, unused := range map[string]string{
		"cmd/collect": "github.com/redis/go-redis",
		"cmd/redrive": "github.com/redis/go-redis",
		"cmd/publish": "github.com/redis/go-redis",
		"cmd/query":   "github.com/nats-io/nats-server",
	} {
		for _, dependency := range dependencies(t, pkg) {
			if strings.HasPrefix(dependency, unused) {
				t.Errorf("%s depends on %s", pkg, dependency)
			}
		}
	}
}

// query shows what watch has stored, and evaluates nothing.
func TestQueryReadsStatesWithoutWatch(t *testing.T) {
	t.Parallel()
	require.NotContains(t, dependencies(t, "cmd/query"), "tallyroll/internal/watch")
}

// The arithmetic needs no connection, no settings and no log. Besides the standard library, a pure package
// may import xxhash, the readers of its input, and other pure packages.
func TestPurePackagesImportNothingElse(t *testing.T) {
	t.Parallel()
	const xxhash, json, yaml = "github.com/cespare/xxhash/v2", "github.com/go-faster/jx", "go.yaml.in/yaml/v4"
	readers := map[string][]string{ // of input, with what they import themselves
		json: {"github.com/go-faster/errors", "github.com/segmentio/asm", "golang.org/x/sys/cpu"},
		yaml: {"tallyroll/internal/platform/yamlfile"},
	}
	pure := map[string][]string{
		"internal/window": {xxhash}, "internal/unique": {xxhash}, "internal/limit/cells": nil, "internal/platform/human": nil,
		"internal/hit": {xxhash, json}, "internal/rules": {xxhash, json, yaml},
	}
	for pkg, allowed := range pure {
		for _, reader := range slices.Clone(allowed) {
			allowed = append(allowed, readers[reader]...)
		}
		for _, dependency := range dependencies(t, pkg) {
			_, isPure := pure[strings.TrimPrefix(dependency, "tallyroll/")]
			if !isPure && !slices.ContainsFunc(allowed, func(a string) bool { return dependency == a || strings.HasPrefix(dependency, a+"/") }) {
				t.Errorf("%s depends on %s", pkg, dependency)
			}
		}
	}
}
