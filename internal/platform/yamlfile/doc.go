// Package yamlfile reads the YAML files that people write for the programs, such as limits and
// tokens. Each mistake has its line.
//
// # What it promises
//
// It is pure: it takes a file's bytes. It accepts one document with mappings, lists and single
// values. It refuses everything with which YAML could surprise: aliases, a second
// document, a field that is unknown, empty or there twice. So the size of what is read is bounded by the
// size of the file.
//
// # What can go wrong
//
// Each error is an *Error. It names the first mistake, its line, and what is allowed. It never
// quotes a value, because a file may hold secrets; callers that know better may do so. SecretFields
// quotes no name of a field either.
package yamlfile
