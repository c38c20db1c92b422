// Package compose checks the files for compose with compose's own parser, where there is no Docker.
package compose
