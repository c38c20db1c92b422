package hit

import (
	"fmt"
	"regexp"
	"strings"
)

// DefaultNamespace is the default of TALLYROLL_NAMESPACE. Names in NATS omit it.
const DefaultNamespace = "tallyroll"

var namespaces = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// CheckNamespace returns an error for a name that is not safe as the first part of a key.
func CheckNamespace(ns string) error {
	if !namespaces.MatchString(ns) {
		return fmt.Errorf("1 to 64 letters, digits, underscores, hyphens and dots")
	}
	return nil
}

// NamespaceToken turns a namespace into a part of a NATS name, without dots and still unique.
func NamespaceToken(namespace string) string {
	return strings.NewReplacer("_", "__", ".", "_-").Replace(namespace)
}

// WorkerDescription is the description of the consumers with which workers of a namespace read.
func WorkerDescription(namespace string) string {
	if namespace == DefaultNamespace {
		return "tallyroll ingest"
	}
	return "tallyroll ingest of " + namespace
}

// ValidSubject reports whether a server accepts a text as a stream's subject, possibly with wildcards.
func ValidSubject(subject string) bool {
	tokens := strings.Split(subject, ".")
	for i, token := range tokens {
		if token == "" || token == ">" && i < len(tokens)-1 || strings.ContainsFunc(token, func(r rune) bool {
			return r <= ' ' || r == 0x7f
		}) {
			return false
		}
	}
	return true
}
