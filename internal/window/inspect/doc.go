// Package inspect reads every key of a namespace, with the cursors that they belong to, so that a caller can
// compare the counts with the streams.
package inspect
