package main

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes what is inside of which program, as CycloneDX: from what the linker wrote into the
// programs, with the licences that were found.
func (r *release) writeSBOM(built []binary, all modules) error {
	name := "tallyroll_" + r.version
	self := cdx.Component{
		BOMRef: name, Type: cdx.ComponentTypeApplication, Name: "tallyroll", Version: r.version,
		Licenses: licences("Apache-2.0"),
	}
	inside := make(map[string]bool)
	var components []cdx.Component
	var dependencies []cdx.Dependency
	var programs []string
	for _, b := range built {
		ref := fmt.Sprintf("%s_%s_%s/%s", name, b.target.os, b.target.arch, b.program.name)
		programs = append(programs, ref)
		components = append(components, cdx.Component{
			BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: b.program.name, Version: r.version,
			Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: b.sum}},
			Properties: &[]cdx.Property{{Name: "tallyroll:target", Value: b.target.String()}},
		})
		deps := linked(b.info)
		refs := make([]string, 0, len(deps))
		for _, dep := range deps {
			inside[dep] = true
			refs = append(refs, all[dep].purl())
		}
		slices.Sort(refs)
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &refs})
	}
	for _, dep := range slices.Sorted(maps.Keys(inside)) {
		m := all[dep]
		components = append(components, cdx.Component{
			BOMRef: m.purl(), Type: cdx.ComponentTypeLibrary, Name: m.path, Version: m.version, PackageURL: m.purl(),
			Licenses: licences(m.ids...),
		})
	}
	dependencies = append([]cdx.Dependency{{Ref: name, Dependencies: &programs}}, dependencies...)

	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: r.time.Format(time.RFC3339), Component: &self}
	bom.Components, bom.Dependencies = &components, &dependencies
	// The same programs have the same number.
	id := sha256.New()
	for _, b := range built {
		fmt.Fprintln(id, b.program.name, b.target, b.sum)
	}
	u := id.Sum(nil)[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80 // a UUID of version 8
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])

	f, err := os.Create(filepath.Join(r.out, name+".cdx.json"))
	if err != nil {
		return err
	}
	if err := cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}
	return f.Close()
}

// purl names a module for those who look for known vulnerabilities.
func (m *module) purl() string {
	return "pkg:golang/" + strings.ReplaceAll(m.path, "+", "%2B") + "@" + strings.ReplaceAll(m.version, "+", "%2B")
}

func licences(ids ...string) *cdx.Licenses {
	out := make(cdx.Licenses, 0, len(ids))
	for _, id := range ids {
		out = append(out, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	return &out
}
