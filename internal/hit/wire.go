package hit

import "strings"

// DefaultNamespace is the namespace of a fleet that has been given none. Names in NATS leave it out.
const DefaultNamespace = "tallyroll"

// NamespaceToken makes a namespace a part of a name in NATS, which has no dots. Different namespaces have different ones.
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

// ValidSubject reports whether a server takes it for a stream's subject. It may have wildcards.
func ValidSubject(subject string) bool {
	tokens := strings.Split(subject, ".")
	for i, token := range tokens {
		if token == "" || token == ">" && i < len(tokens)-1 || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return false
		}
	}
	return true
}
