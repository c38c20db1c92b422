// Package limitfile reads the file of named limits: their numbers, the templates of their keys, and the
// descriptors of Envoy's global rate limit protocol that select them. It does no I/O.
//
// A file is read whole or refused with the line of its first mistake. Distinct values of a template's
// variables, or of a descriptor's entries, never make the same key.
package limitfile
