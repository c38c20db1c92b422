package hit

import "strings"

const (
	// RejectedStream holds the hits that could not be counted, those of all namespaces.
	RejectedStream = "HITS_REJECTED"
	// RejectedSubjects are the subjects of that stream.
	RejectedSubjects = rejectedPrefix + ">"
	rejectedPrefix   = "hits_rejected."
	// DefaultNamespace is the namespace of a fleet that has been given none. Names in NATS leave it out.
	DefaultNamespace = "tallyroll"
)

// NamespaceToken makes a namespace a part of a name in NATS, which has no dots. Different namespaces have different ones.
func NamespaceToken(namespace string) string {
	return strings.NewReplacer("_", "__", ".", "_-").Replace(namespace)
}

// RejectedSubject is the subject of the rejects of a namespace that come from a stream; * stands for all streams.
func RejectedSubject(namespace, stream string) string {
	if namespace == DefaultNamespace {
		return rejectedPrefix + stream
	}
	return rejectedPrefix + stream + "." + NamespaceToken(namespace)
}

// RejectedFrom is the stream that a reject with this subject comes from.
func RejectedFrom(subject string) string {
	stream, _, _ := strings.Cut(strings.TrimPrefix(subject, rejectedPrefix), ".")
	return stream
}

// ViewOf names a stream as one namespace counts it, for names of what that namespace has refused. The name of a
// stream has no slash.
func ViewOf(namespace, stream string) string {
	if namespace == DefaultNamespace {
		return stream
	}
	return NamespaceToken(namespace) + "/" + stream
}

// WorkerDescription is the description of the consumers with which workers of a namespace read.
func WorkerDescription(namespace string) string {
	if namespace == DefaultNamespace {
		return "tallyroll ingest"
	}
	return "tallyroll ingest of " + namespace
}

// HeaderNamespace names the one namespace that a message is for. On a reject, that is the namespace whose worker has
// refused the hit. Workers of others count nothing of a message that has it.
const HeaderNamespace = "Tallyroll-Namespace"

// The other headers of a reject.
const (
	HeaderReason   = "Tallyroll-Reason"
	HeaderDetail   = "Tallyroll-Detail"
	HeaderStream   = "Tallyroll-Stream"   // that the message was in
	HeaderSequence = "Tallyroll-Sequence" // of the message
	HeaderItem     = "Tallyroll-Item"     // index in the message
	HeaderStored   = "Tallyroll-Stored"   // when the message was: RFC 3339 with nanoseconds
	HeaderPart     = "Tallyroll-Part"     // such as 1/2, of a reject in several messages
	HeaderCounter  = "Tallyroll-Counter"  // that the message's subject gives to hits that name none
	HeaderKind     = "Tallyroll-Kind"     // what was refused, if it is no hit
	HeaderSubject  = "Tallyroll-Subject"  // of the message that was refused, by which its rules were found
)

// RedriveToken begins the part of a subject that is a reject's own when it is published again. On such a subject
// alone, HeaderSubject says by which subject the rules of the message are found.
const RedriveToken = "redrive-"
