// Package openapi finds what a change of an OpenAPI document breaks for clients that were written for the one
// before.
package openapi

import (
	"fmt"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/oasdiff/oasdiff/checker"
	"github.com/oasdiff/oasdiff/diff"
	"github.com/oasdiff/oasdiff/load"
)

// Breaking lists what clients of one document cannot do with another one any more, a line each.
func Breaking(before, after []byte) (lines []string, err error) {
	var specs [2]*load.SpecInfo
	for i, document := range [][]byte{before, after} {
		spec, err := openapi3.NewLoader().LoadFromData(document)
		if err != nil {
			return nil, fmt.Errorf("read the OpenAPI document: %w", err)
		}
		specs[i] = &load.SpecInfo{Spec: spec}
	}
	found, sources, err := diff.GetPathsDiff(diff.NewConfig(), []*load.SpecInfo{specs[0]}, []*load.SpecInfo{specs[1]})
	if err != nil {
		return nil, fmt.Errorf("compare the OpenAPI documents: %w", err)
	}
	config := checker.NewConfig(checker.GetAllChecks())
	for _, change := range checker.CheckBackwardCompatibility(config, found, sources) {
		if change.IsBreaking() {
			lines = append(lines, fmt.Sprintf("%s %s: %s", change.GetOperation(), change.GetPath(),
				change.GetUncolorizedText(checker.NewDefaultLocalizer())))
		}
	}
	return lines, nil
}
