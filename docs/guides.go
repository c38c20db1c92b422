// Package docs has the guides that the page /docs of query shows beside the reference.
package docs

import "embed"

// Guides are the pages of this directory that users of the services read.
//
//go:embed queries.md limits.md collect.md rules.md delivery.md operations.md promql.md reference.md scaling.md watch.md
var Guides embed.FS
